"""Looks for what the kernel shim relies on in transformers' modules: mixer classes and the names they call ops by.

It reads the source as `replacements.packing.dispatch` reads a built model, in the same order: a pair of methods,
kernels held as attributes, globals of the module, a convolution that is called in line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tools import _wheels
from tools.drift_scan import ABSENT, FOUND, LOST, MISS, Finding

_KERNEL_METHOD = "cuda_kernels_forward"
_CONVOLUTION = "causal_conv1d"


class FamilyRow(Protocol):
    """What this scan reads of a row of the table of families."""

    name: str
    module: str
    mixers: tuple[str, ...]
    ops: tuple[str, ...]


def scan(
    package: str, version: str, wheel: Path, families: Iterable[FamilyRow], kernels: Mapping[str, tuple[str, ...]]
) -> list[Finding]:
    """Checks every family in one wheel; a family that the release does not have is absent, not missed.

    Args:
        package: distribution name.
        version: its release.
        wheel: the wheel.
        families: rows of the table.
        kernels: every name by which mixers reach kernels, with the ops that it runs.
    """
    return [
        Finding(package, version, *cells)
        for family in families
        for cells in examine(_wheels.read(wheel, family.module), family, kernels)
    ]


def examine(
    source: str | None, family: FamilyRow, kernels: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, str, str]]:
    """Yields (column, status, outcome, detail) for each op of a family, given its module's text or None."""
    columns = [(f"{family.name}: {op}", op) for op in family.ops]
    if source is None:
        yield from ((column, ABSENT, "–", "") for column, _ in columns)
        return
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    mixers = [_with_bases(classes[name], classes) for name in family.mixers if name in classes]
    if not mixers:
        detail = f"{family.module} defines none of {', '.join(family.mixers)}; it defines {', '.join(sorted(classes))}"
        yield from ((column, MISS, "no mixer", detail) for column, _ in columns)
        return
    reached = [_reached(tree, mixer, kernels) for mixer in mixers]
    for column, op in columns:
        ways = sorted({way.get(op, "") for way in reached} - {""})
        if all(op in way for way in reached):
            yield column, FOUND, " / ".join(ways), ""
        elif op == _CONVOLUTION and (own := _own_convolutions(mixers, classes)):
            # Known and safe: the guard sees that the op cannot be reached and trains padded.
            yield column, LOST, "padded", f"{family.name} convolves with a class of its own, {', '.join(own)}"
        else:
            names = ", ".join(name for name, ops in kernels.items() if op in ops)
            used = sorted(set().union(*(_names(part) for mixer in mixers for part in mixer)) & _globals(tree))
            detail = f"{', '.join(family.mixers)} call {op} by none of {names}; of their module they use {used}"
            yield column, MISS, "no dispatch", detail


def _reached(tree: ast.Module, mixer: list[ast.ClassDef], kernels: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Says for each op that a mixer class reaches in which way it does."""
    methods = {part.name: part for base in mixer for part in base.body if isinstance(part, ast.FunctionDef)}
    held = {name for base in mixer for name in _attributes(base)}
    if _KERNEL_METHOD in methods:
        way, names = "methods", _names(methods[_KERNEL_METHOD])
    elif held & kernels.keys():
        way, names = "attribute", held
    else:
        way, names = "global", {name for base in mixer for name in _names(base)} & _globals(tree)
    found = {op: way for name in names & kernels.keys() for op in kernels[name]}
    if _CONVOLUTION not in found and "Conv1d" in {name for base in mixer for name in _names(base)}:
        found[_CONVOLUTION] = "in line"
    return found


def _own_convolutions(mixers: list[list[ast.ClassDef]], classes: Mapping[str, ast.ClassDef]) -> list[str]:
    """Classes of the module that derive from a convolution and that the mixers use in its place."""
    used = {name for mixer in mixers for part in mixer for name in _names(part)}
    return [name for name in sorted(used & classes.keys()) if "Conv1d" in map(_last_name, classes[name].bases)]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _with_bases(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """A class after the classes of its module that it derives from, so that its own methods come last and win."""
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return [part for base in bases for part in _with_bases(classes[base], classes)] + [node]


def _names(node: ast.AST) -> set[str]:
    """Every name and attribute that a piece of code refers to."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


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
