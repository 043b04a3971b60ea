"""``patcher diff``: each rewritten function against upstream."""

from __future__ import annotations

import difflib
import linecache
import sys
from dataclasses import dataclass

from patcher import _session, _shown, _source
from patcher.cli import terminal, upstream
from patcher.cli.errors import NO, OK, CliError


@dataclass(frozen=True)
class Difference:
    """One rewritten function.

    Attributes:
        target: ``module:qualified.name``.
        text: unified diff with upstream's line numbers; empty when the rewrite is not in place.
        state: as in ``patcher.status()``.
        reason: why it is not in place.
    """

    target: str
    text: str
    state: str
    reason: str


def run(name: str | None, *, as_json: bool) -> int:
    """Print the differences of one rewrite, or of all; returns the exit code."""
    upstream.load()
    records = [record for record in _session.records() if name in (None, record.rewrite.name)]
    if not records:
        known = ", ".join(record.rewrite.name for record in _session.records()) or "none, the patcher is off"
        raise CliError(f"no rewrite is called {name!r}" if name else "nothing is patched", known)
    found = [_difference(record) for record in records]
    if as_json:
        terminal.print_json([vars(difference) for difference in found])
    else:
        for difference in found:
            _show(difference)
    return NO if any(difference.state == "failed" for difference in found) else OK


def _difference(record: _session.Record) -> Difference:
    target = record.rewrite.target
    edited = linecache.getlines(_shown.filename(target))
    text = ""
    if record.original is not None and edited:
        original = _source.of(record.original, target).text.splitlines(keepends=True)
        version = f"{record.rewrite.package} {record.version}"
        text = "".join(difflib.unified_diff(original, edited, f"{version} {target}", f"patched {target}"))
    return Difference(target, text, record.seen_state, record.reason)


def _show(difference: Difference) -> None:
    if not difference.text:
        print(f"# {difference.target}: {difference.state}. {difference.reason}".rstrip())
    elif sys.stdout.isatty():
        from rich.syntax import Syntax

        terminal.out().print(Syntax(difference.text, "diff", theme="ansi_dark", background_color="default"))
    else:
        sys.stdout.write(difference.text)
