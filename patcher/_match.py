"""Finds the nodes of a function that a pattern with holes matches."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import lru_cache

import regex

from patcher import _pattern
from patcher._anchors import Anchor
from patcher._locate import Function
from patcher._normalform import SUITES, Located, expressions, statements
from patcher._pattern import Template

_WILD = "..."


@dataclass(frozen=True)
class Match:
    """One place that an anchor matches.

    Attributes:
        place: the node.
        captures: text of each named hole, in normal form.
        run: number of statements matched, more than one only for a text of several statements.
    """

    place: Located
    captures: dict[str, str] = field(default_factory=dict)
    run: int = 1


def find(function: Function, anchor: Anchor, any_level: bool = False) -> list[Match]:
    """All places in the function itself that the anchor matches, in order.

    Args:
        function: the function's node, parsed with positions.
        anchor: what to look for.
        any_level: ignore the nesting level that the anchor asks for.
    """
    templates = _pattern.parse(anchor.pattern, anchor.level == "keyword")
    if len(templates) > 1:
        found = _runs(function, templates)
    elif isinstance(templates[0].tree, ast.expr | ast.keyword):
        found = _single(expressions(function), templates[0])
    else:
        found = _single(statements(function), templates[0])
    if anchor.level == "body" and not any_level:
        body = [match for match in found if match.place.depth == 0]
        found = found if anchor.only and body else body
    return found


def _single(places, template: Template) -> list[Match]:
    kind = type(template.tree)
    found = []
    for place in places:
        if type(place.node) is kind and (captures := match_node(place.node, template)) is not None:
            found.append(Match(place, captures))
    return found


def _runs(function: Function, templates: tuple[Template, ...]) -> list[Match]:
    """Places where consecutive statements match the templates one by one, holes shared between them."""
    found = []
    for place in statements(function):
        start = next(index for index, node in enumerate(place.block) if node is place.node)
        run = place.block[start : start + len(templates)]
        if len(run) < len(templates):
            continue
        merged: dict[str, str] = {}
        for node, template in zip(run, templates, strict=True):
            captures = match_node(_content(node, template), template)
            if captures is None or any(merged.get(name, text) != text for name, text in captures.items()):
                break
            merged.update(captures)
        else:
            found.append(Match(place, merged, len(templates)))
    return found


def _content(node: ast.stmt, template: Template) -> ast.AST:
    return node.value if isinstance(node, ast.Expr) and isinstance(template.tree, ast.expr) else node


def match_node(node: ast.AST, template: Template) -> dict[str, str] | None:
    """What the holes hold if the node matches the template, else None."""
    if type(node) is not type(template.tree):
        return None
    masked = _mask(node, template.tree)
    text = ast.unparse(masked)
    wanted = None
    for pattern in _compiled(template):
        match = pattern.fullmatch(text)
        if match is None:
            return None
        captures = {name[2:]: value for name, value in match.groupdict().items() if name[:2] == "h_" and value}
        wanted = wanted or _tree(text, node)
        if _tree(template.fill(captures), node) == wanted:
            return captures
    return None


@lru_cache(maxsize=1024)
def _compiled(template: Template) -> tuple:
    return tuple(regex.compile(template.regex(lazy), regex.DOTALL) for lazy in (False, True))


def _tree(text: str, node: ast.AST) -> str | None:
    """The tree that a text parses to, as text; None when it does not parse."""
    text = f"_({text})" if isinstance(node, ast.keyword) else text
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


def is_wild(suite: list) -> bool:
    """Whether a pattern's suite is ``...``, any suite."""
    return len(suite) == 1 and isinstance(suite[0], ast.Expr) and ast.unparse(suite[0]) == _WILD


def _mask(node: ast.AST, pattern: ast.AST) -> ast.AST:
    """A copy of the node in which every suite that the pattern leaves open is ``...``.

    Clauses that the pattern does not write are left out when its last suite is open: ``if x: ...`` speaks of the
    header alone.
    """
    suites = [name for name in SUITES if isinstance(getattr(pattern, name, None), list)]
    if not suites:
        return node
    fields = dict(ast.iter_fields(node))
    written = [name for name in suites if getattr(pattern, name)]
    open_end = bool(written) and _is_open(getattr(pattern, written[-1]))
    for name in suites:
        wanted, has = getattr(pattern, name), fields[name]
        if not wanted:
            fields[name] = [] if open_end else has
        elif is_wild(wanted):
            fields[name] = wanted if has else has
        elif len(wanted) == len(has):
            fields[name] = [_mask(h, w) if type(h) is type(w) else h for h, w in zip(has, wanted, strict=True)]
    return ast.copy_location(type(node)(**fields), node)


def _is_open(suite: list) -> bool:
    if is_wild(suite):
        return True
    last = suite[-1]
    return isinstance(last, ast.ExceptHandler | ast.match_case) and is_wild(last.body)
