"""Says what an anchor nearly matched, where else it stands, and what to do."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import regex

from patcher import _match, _pattern
from patcher._anchors import Anchor
from patcher._errors import AnchorError
from patcher._locate import Function
from patcher._match import Match
from patcher._normalform import Located, expressions, header, statements
from patcher._rewrite import Edit, Rewrite

_SHOWN = 3
_REFINED = 12
_TIMEOUT_S = 0.05
_DEEPER = 0.85  # weight of a likeness at another level than the anchor's


@dataclass(frozen=True)
class Candidate:
    """A statement that an anchor nearly matched.

    Attributes:
        line: its line in the module's text, from 1.
        where: qualified name of the function that holds it.
        text: first line of its normal form.
        depth: nesting level in that function, 0 for its body.
        score: likeness to the anchor, 0 to 1; 1 when the anchor matches it.
        diff: the anchor and the text as a small diff.
        note: why it does not count, when it matches: another level, another function, one of several.
    """

    line: int
    where: str
    text: str
    depth: int
    score: float
    diff: str
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """The candidate as JSON-ready data."""
        return asdict(self)


def nearest(tree: ast.Module, function: Function, qualname: str, anchors: Iterable[Anchor]) -> tuple[Candidate, ...]:
    """Candidates for anchors that matched nothing, best first."""
    found: list[Candidate] = []
    for anchor in anchors:
        found += _elsewhere(tree, function, qualname, anchor)
        found += _alike(function, qualname, anchor)
    found.sort(key=lambda near: -near.score)
    seen: set[int] = set()
    unique = [c for c in found if not (c.line in seen or seen.add(c.line))]
    return tuple(unique[:_SHOWN])


def matched(qualname: str, matches: list[Match], anchor: Anchor) -> tuple[Candidate, ...]:
    """All matches of an ambiguous anchor."""
    note = f"one of {len(matches)} matches"
    return tuple(candidate(match.place, qualname, anchor, 1.0, note) for match in matches)


def miss(
    rewrite: Rewrite, edit: Edit, reason: str, candidates: tuple[Candidate, ...], version: str | None
) -> AnchorError:
    """The error for an edit that found no place."""
    lines = [f"edit {edit.name!r} ({edit.action}): {reason}"]
    for number, anchor in enumerate(edit.anchors):
        label = f"anchor {number}" if len(edit.anchors) > 1 else "anchor"
        lines.append(f"{label} (level {anchor.level}): {_shown(anchor)}")
    for near in candidates:
        note = f", {near.note}" if near.note else ""
        head = f"nearest: {near.where}, line {near.line}, depth {near.depth}"
        lines += [f"{head}, {near.score:.0%} alike{note}", *(f"  {row}" for row in near.diff.splitlines())]
    if not candidates:
        lines.append("nothing in the function is like it")
    text = "\n".join(lines)
    error = AnchorError(text, rewrite=rewrite.name, edit=edit.name, reason=reason, candidates=candidates)
    error.locate(rewrite.target, rewrite.package, version)
    return error


def _shown(anchor: Anchor) -> str:
    templates = _pattern.parse(anchor.pattern, anchor.level == "keyword")
    return "; ".join(re.sub(r"\n\s*", " ", template.shown) for template in templates)


def candidate(place: Located, where: str, anchor: Anchor, score: float, note: str = "") -> Candidate:
    """A statement or expression as a candidate for an anchor."""
    text = header(place.node) if isinstance(place.node, ast.stmt) else ast.unparse(place.node)
    want = _shown(anchor).removesuffix(" ...")
    diff = f"  {text}" if want == text else f"- {want}\n+ {text}"
    return Candidate(place.line, where, text, place.depth, round(score, 3), diff, note)


def _elsewhere(tree: ast.Module, function: Function, qualname: str, anchor: Anchor) -> list[Candidate]:
    """Places where the anchor does match: another level of the function, or another function of the module."""
    found = [
        candidate(match.place, qualname, anchor, 1.0, f"matches, but not at level {anchor.level!r}")
        for match in _match.find(function, anchor, any_level=True)
    ]
    if found:
        return found
    for name, other in _functions(tree, ""):
        if other is not function:
            matches = _match.find(other, anchor, any_level=True)
            found += [candidate(m.place, name, anchor, 0.5, "matches in another function") for m in matches]
    return found[:_SHOWN]


def _functions(scope: ast.AST, prefix: str):
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.<locals>.")


def _alike(function: Function, qualname: str, anchor: Anchor) -> list[Candidate]:
    template = _pattern.parse(anchor.pattern, anchor.level == "keyword")[0]
    want = template.shown.partition("\n")[0]
    places = expressions(function) if isinstance(template.tree, ast.expr | ast.keyword) else statements(function)
    kind = ast.keyword if isinstance(template.tree, ast.keyword) else ast.expr | ast.stmt
    texts = []
    for place in places:
        if isinstance(place.node, kind) and not isinstance(place.node, ast.Name | ast.Constant):
            text = header(place.node) if isinstance(place.node, ast.stmt) else ast.unparse(place.node)
            texts.append((place, text))
    matcher = difflib.SequenceMatcher(None, "", want, autojunk=False)

    def rate(text: str, ratio: str) -> float:
        matcher.set_seq1(text)
        return getattr(matcher, ratio)()

    # each measure is dearer and better than the one before
    texts = sorted(texts, key=lambda item: -rate(item[1], "quick_ratio"))[: 2 * _REFINED]
    rated = sorted(((rate(text, "ratio"), place, text) for place, text in texts), key=lambda item: -item[0])
    rated = [(max(score, _fuzzy(want, text)), place) for score, place, text in rated[:_REFINED]]
    if anchor.level == "body":
        rated = [(score if place.depth == 0 else score * _DEEPER, place) for score, place in rated]
    rated.sort(key=lambda item: -item[0])
    return [candidate(place, qualname, anchor, min(score, 0.99)) for score, place in rated[:_SHOWN] if score > 0.35]


def _fuzzy(want: str, text: str) -> float:
    """Likeness of a text to a shown pattern, with holes free: 1 less the share of its letters that differ."""
    parts = re.split(r"\$\.\.\.|\$\w+", want)
    letters = sum(map(len, parts))
    if letters < 4:
        return 0.0
    allowed = max(2, letters // 3)
    pattern = r"(?b)(?:" + ".*?".join(map(re.escape, parts)) + f"){{e<={allowed}}}"
    try:
        match = regex.fullmatch(pattern, text, timeout=_TIMEOUT_S)
    except TimeoutError:
        return 0.0
    return 1 - sum(match.fuzzy_counts) / letters if match else 0.0
