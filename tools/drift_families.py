"""Looks for what the kernel shim relies on in transformers' modules: mixer classes and the names they call ops by."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from tools import _wheels
from tools.drift_scan import ABSENT, FOUND, MISS, Finding


class FamilyRow(Protocol):
    """What this scan reads of a row of the table of families."""

    name: str
    module: str
    mixers: tuple[str, ...]
    ops: tuple[str, ...]


def scan(
    package: str, version: str, wheel: Path, families: Iterable[FamilyRow], names: Mapping[str, tuple[str, ...]]
) -> list[Finding]:
    """Checks every family in one wheel; a family that the release does not have is absent, not missed.

    Args:
        package: distribution name.
        version: its release.
        wheel: the wheel.
        families: rows of the table.
        names: for each op, the names under which mixers reach it.
    """
    found = []
    for family in families:
        source = _wheels.read(wheel, family.module)
        for column, status, outcome, detail in _family(source, family, names):
            found.append(Finding(package, version, column, status, outcome, detail))
    return found


def _family(source: str | None, family: FamilyRow, names: Mapping[str, tuple[str, ...]]):
    if source is None:
        yield from ((f"{family.name}: {op}", ABSENT, "no family", "") for op in family.ops)
        return
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    mixers = [classes[name] for name in family.mixers if name in classes]
    if not mixers:
        near = ", ".join(sorted(classes))
        detail = f"{family.module} has none of the mixer classes {', '.join(family.mixers)}; its classes: {near}"
        yield from ((f"{family.name}: {op}", MISS, "no mixer", detail) for op in family.ops)
        return
    for op in family.ops:
        yield (f"{family.name}: {op}", *_op(tree, mixers, op, names.get(op, ())))


def _op(tree: ast.Module, mixers: list[ast.ClassDef], op: str, names: tuple[str, ...]) -> tuple[str, str, str]:
    """Says how the mixers of a module reach an op: an attribute of theirs, or a global that they call."""
    used = {name for mixer in mixers for name in _loaded(mixer)}
    attributes = {name for mixer in mixers for name in _attributes(mixer)}
    bound = _globals(tree)
    kinds = []
    if any(name in attributes for name in names):
        kinds.append("attribute")
    if any(name in bound and (name in used or name in attributes) for name in names):
        kinds.append("global")
    if kinds:
        return FOUND, " + ".join(kinds), ""
    called = ", ".join(sorted(used & bound)) or "no function of its module"
    detail = f"{', '.join(m.name for m in mixers)} reaches {op} by none of {', '.join(names)}; it uses {called}"
    return MISS, "no dispatch", detail


def _loaded(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def _attributes(mixer: ast.ClassDef) -> set[str]:
    """Names that the class gives to `self`."""
    return {
        part.attr
        for part in ast.walk(mixer)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }


def _globals(tree: ast.Module) -> set[str]:
    """Names that the module binds at its own level, under conditions too."""
    bound: set[str] = set()
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        else:
            pending += ast.iter_child_nodes(node)
    return bound
