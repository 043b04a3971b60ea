"""``patcher status``: what is patched."""

from __future__ import annotations

import patcher
from patcher.cli import terminal, upstream
from patcher.cli.errors import NO, OK


def run(*, as_json: bool) -> int:
    """Print the status after importing what the rewrites are for; returns the exit code."""
    import_errors = upstream.load()
    status = patcher.status()
    if as_json:
        terminal.print_json({**status.to_dict(), "import_errors": import_errors})
    else:
        print(status)
        for module, reason in import_errors.items():
            print(f"{module} cannot be imported: {reason}")
    broken = import_errors or any(rewrite.state == "failed" for rewrite in status.rewrites)
    return NO if broken else OK
