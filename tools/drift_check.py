"""Judges what a rewrite made of a mutant, by means of its own: trees compared, not the engine's word taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from patcher.rewriting import ALREADY, MISSED, AnchorError, PatchError, edit_source
from tools.drift_subject import Site, Subject, function_of

_NO_CANDIDATE = "refused without a nearest candidate"
_RUNTIME = "__patcher__"  # the name by which injected text reaches the runtime


class Check:
    """Judges mutants of one subject."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self.rewrite = subject.rewrite

    def patched_wrongly(self, text: str, renamed: tuple[str, str] | None = None) -> str:
        """Says what is wrong with the patch of a meaning-preserving mutant; empty if nothing is.

        Args:
            text: the mutant.
            renamed: a local variable's old and new name, if the mutant renames one.
        """
        want = self.subject.patched.matched
        try:
            edited = edit_source(text, self.rewrite)
            compile(edited.text, "mutant", "exec")
        except PatchError as error:
            return f"refused: {error}"
        except SyntaxError as error:
            return f"the patched text does not compile: {error}"
        if edited.matched != want:
            return f"matched {edited.matched}, the original {want}"
        return self._again(edited.text) or self._misplaced(edited.text, renamed)

    def _misplaced(self, text: str, renamed: tuple[str, str] | None) -> str:
        """Compares what was put into a patched text, and beside what, with the patch of the original."""
        tree = ast.parse(text)
        function = function_of(tree, self.rewrite)
        if calls(tree) != calls(function):
            return "something was put outside the function"
        if renamed and any(isinstance(node, ast.Name) and node.id == renamed[0] for node in ast.walk(function)):
            return f"the injected text uses {renamed[0]!r}, which the function calls {renamed[1]!r}"
        want = self._landed(renamed) if renamed else self._original
        got = list(landings(function, self.subject.sites))
        return "" if want == got else f"the injected text stands elsewhere: {got}, not {want}"

    def _again(self, text: str) -> str:
        """Says what is wrong if a patched text is asked for the same edits again."""
        try:
            again = edit_source(text, self.rewrite)
        except PatchError as error:
            return f"asked again, it was refused: {error}"
        fresh = again.changed or any(outcome not in (ALREADY, MISSED) for _, outcome in again.matched)
        return f"asked again, it was patched again: {again.matched}" if fresh else ""

    def accepted_wrongly(self, text: str, site: Site, removed: bool = False) -> str:
        """Says what is wrong with how a meaning-changing mutant was taken; empty if it was refused as it should be.

        Args:
            text: the mutant.
            site: where the edit that must be refused landed in the original.
            removed: whether what the anchor matched is gone without trace, so that nothing may be like it.
        """
        fault = self._accepted_wrongly(text, site)
        if fault == _NO_CANDIDATE:
            # The nearest candidate may stand in another function of the module.
            fault = self._accepted_wrongly(self.subject.whole(text), site)
        return "" if removed and fault == _NO_CANDIDATE else fault

    def _accepted_wrongly(self, text: str, site: Site) -> str:
        try:
            edited = edit_source(text, self.rewrite)
        except AnchorError as error:
            if error.edit != site.edit.name:
                return f"refused for {error.edit!r}, but it is {site.edit.name!r} that lost its place"
            return "" if error.candidates else _NO_CANDIDATE
        except PatchError as error:
            return f"refused with {type(error).__name__}: {error}"
        if not site.edit.required and (site.edit.name, MISSED) in edited.matched:
            return ""  # an optional edit warns and is left out
        return f"patched in silence: {edited.matched}"

    @cached_property
    def _original(self) -> list[tuple[str, str]]:
        return self._landed(None)

    def _landed(self, renamed: tuple[str, str] | None) -> list[tuple[str, str]]:
        function = function_of(ast.parse(self.subject.patched.text), self.rewrite)
        for node in ast.walk(function):
            if renamed and isinstance(node, ast.Name) and node.id == renamed[0]:
                node.id = renamed[1]
        return list(landings(function, self.subject.sites))


def calls(tree: ast.AST) -> int:
    """Number of calls that lead to the runtime."""
    return sum(isinstance(node, ast.Name) and node.id == _RUNTIME for node in ast.walk(tree))


def landings(tree: ast.FunctionDef, sites: list[Site]) -> Iterator[tuple[str, str]]:
    """Yields each statement that calls the runtime, with the anchored statement beside it.

    That is the next statement for text put before its anchor, the one above for text put after it, and none otherwise.
    """
    before = {_plain(site.edit.text) for site in sites if site.edit.action == "before"}
    after = {_plain(site.edit.text) for site in sites if site.edit.action == "after"}
    for block in _blocks(tree):
        injected = [bool(calls(_bare(node))) for node in block]
        for index, node in enumerate(block):
            if injected[index]:
                text = ast.unparse(_bare(node))
                step = (text in before) - (text in after)
                yield text, _beside(block, injected, index, step)


def _beside(block: list[ast.stmt], injected: list[bool], index: int, step: int) -> str:
    """The nearest statement in a direction that was not injected itself, as text."""
    while step and 0 <= index < len(block) and injected[index]:
        index += step
    return ast.unparse(block[index]) if step and 0 <= index < len(block) else ""


def _plain(text: str) -> str:
    """A text in normal form; one with holes has none, and is not looked for."""
    return "" if "$" in text else ast.unparse(ast.parse(text))


def _bare(node: ast.stmt) -> ast.AST:
    """A statement without the statements inside it."""
    suites = {name: [] for name, value in ast.iter_fields(node) if _is_suite(value)}
    return type(node)(**{**dict(ast.iter_fields(node)), **suites}) if suites else node


def _is_suite(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], ast.stmt | ast.ExceptHandler)


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block
