"""``patcher status``: what is patched."""

from __future__ import annotations

import patcher
from patcher.cli import terminal, upstream
from patcher.cli.errors import NO, OK


def run(*, as_json: bool) -> int:
    """Print the status after importing what the rewrites are for; returns the exit code."""
    loaded = upstream.load()
    status = patcher.status()
    if as_json:
        terminal.print_json({**status.to_dict(), "import_errors": loaded.failed})
    else:
        print(status)
        for module, reason in loaded.failed.items():
            print(f"{module} cannot be imported: {reason}")
    broken = loaded.failed or any(rewrite.state == "failed" for rewrite in status.rewrites)
    return NO if broken else OK
