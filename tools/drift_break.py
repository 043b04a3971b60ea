"""Mutants that do not mean the same: a rewrite must refuse each of them, and name the nearest candidate."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from tools.drift_subject import Site, Subject, splice

Mutant = tuple[str, str, Site]


def mutants(subject: Subject) -> Iterator[Mutant]:
    """Yields (kind, text, site of the edit that must be refused)."""
    for site in subject.sites:
        if site.structural:
            made = _early_exits(subject) if site.edit.action == "append" else ()
        else:
            made = (*_moved_away(subject, site), *_changed(subject, site))
        for kind, text in made:
            if _parses(text):
                yield kind, text, site


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _moved_away(subject: Subject, site: Site) -> Iterator[tuple[str, str]]:
    node, indent = site.node, subject.indent(site.node)
    if not subject.alone(node):
        return
    span, text = subject.lines(node), subject.text

    def instead(new: str) -> str:
        return splice(text, [(*span, new)])

    def printed(deeper: str) -> str:
        return deeper + ast.unparse(node).replace("\n", f"\n{deeper}") + "\n"

    yield "removed", instead(f"{indent}pass\n")
    yield "duplicated", instead(text[slice(*span)] * 2)
    name = "elsewhere" if "." in subject.rewrite.qualname else "_elsewhere"
    outer = subject.indent(subject.function)
    yield (
        "moved to another function",
        f"{instead(f'{indent}pass' + chr(10))}\n{outer}def {name}():\n{printed(outer + '    ')}",
    )
    yield "moved to an inner function", instead(f"{indent}def _later():\n{printed(indent + '    ')}")
    if any(anchor.level == "body" for anchor in site.edit.anchors):
        yield "moved to another level", instead(f"{indent}if True:\n{printed(indent + '    ')}")
        yield "moved to another level", instead(f"{indent}for _ in range(2):\n{printed(indent + '    ')}")


def _changed(subject: Subject, site: Site) -> Iterator[tuple[str, str]]:
    """Changes what the anchor's pattern fixes: a name, an operator, a constant, or the kind of statement."""
    fixed = {name for anchor in site.edit.anchors for name in _fixed(anchor.pattern)}
    head = _head(site.node)
    for index, part in enumerate(ast.walk(head)):
        other = _changed_node(part, fixed)
        if other is not None:
            copied = copy.deepcopy(head)
            _replace(copied, index, other)
            yield "changed", _with_head(subject, site.node, copied)
    if isinstance(site.node, ast.Return):
        for other in ("return", f"yield {ast.unparse(site.node.value)}"):
            yield "changed", splice(subject.text, [(*subject.span(site.node), other)])


def _fixed(pattern: str) -> set[str]:
    """Names in a pattern that are not holes."""
    return set(re.findall(r"(?<![\w$.])[A-Za-z_]\w*|(?<=\.)[A-Za-z_]\w*", re.sub(r"\$(\.\.\.)?\w*", " ", pattern)))


def _head(node: ast.stmt) -> ast.stmt:
    """A statement without its suites."""
    bare = copy.deepcopy(node)
    for suite in ("body", "orelse", "finalbody", "handlers"):
        if getattr(bare, suite, None):
            setattr(bare, suite, [ast.Pass()] if suite == "body" else [])
    return bare


def _changed_node(part: ast.AST, fixed: set[str]) -> ast.AST | None:
    """The node with another meaning, if the pattern fixes what it says."""
    other = copy.copy(part)
    if isinstance(part, ast.Name) and part.id in fixed:
        other.id = f"{part.id}_of_another"
    elif isinstance(part, ast.Attribute) and part.attr in fixed:
        other.attr = f"{part.attr}_of_another"
    elif isinstance(part, ast.keyword) and part.arg in fixed:
        other.arg = f"{part.arg}_of_another"
    elif isinstance(part, ast.Compare) and _all_fixed(part, fixed):
        flip = {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq, ast.Gt: ast.LtE, ast.Lt: ast.GtE}
        other.ops = [flip.get(type(part.ops[0]), ast.Eq)(), *part.ops[1:]]
    else:
        return None
    return other


def _all_fixed(part: ast.Compare, fixed: set[str]) -> bool:
    """Whether the pattern spells the comparison out rather than leaving it to a hole."""
    names = [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
    return bool(names) and all(name in fixed for name in names)


def _replace(tree: ast.AST, index: int, new: ast.AST) -> None:
    """Puts the fields of a node in the place of the index-th node of a tree, counted as `ast.walk` does."""
    for number, part in enumerate(ast.walk(tree)):
        if number == index:
            for field in part._fields:
                if not isinstance(getattr(new, field), ast.AST | list) or field == "ops":
                    setattr(part, field, getattr(new, field))
            return


def _with_head(subject: Subject, node: ast.stmt, head: ast.stmt) -> str:
    """The text with another head on a statement; its suite stays as it was written."""
    start, stop = subject.span(node)
    if not getattr(node, "body", None):
        return splice(subject.text, [(start, stop, ast.unparse(head).replace("\n", "\n" + subject.indent(node)))])
    first = subject.lines(node.body[0])[0]
    return splice(subject.text, [(start, first, ast.unparse(head).splitlines()[0] + "\n")])


def _early_exits(subject: Subject) -> Iterator[tuple[str, str]]:
    """Returns in the function's own body, after which text at its end would not run."""
    body = subject.function.body
    for node in {body[len(body) // 3], body[2 * len(body) // 3]}:
        if subject.alone(node):
            start, indent = subject.lines(node)[0], subject.indent(node)
            yield (
                "leaves early",
                splice(subject.text, [(start, start, f"{indent}if len(__name__) > 99:\n{indent}    return\n")]),
            )
    last = body[-1]
    if subject.alone(last):
        stop, indent = subject.lines(last)[1], subject.indent(last)
        yield "leaves early", splice(subject.text, [(stop, stop, f"{indent}raise RuntimeError\n")])
