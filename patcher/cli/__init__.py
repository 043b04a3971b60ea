"""The command line: ``patcher`` and ``python -m patcher``."""

from __future__ import annotations

import sys


def main() -> None:
    """Parse the arguments, run the command, and end the process with its exit code.

    Errors are one line on standard error, and exit code 2; ``--debug`` adds the traceback. A script given to
    ``patcher run`` is started after the parser has returned: its exceptions, exit code and signals are its own.
    """
    from patcher.cli import terminal
    from patcher.cli.app import app
    from patcher.cli.errors import FAILED
    from patcher.cli.launch import Launch

    hook = sys.excepthook
    target = None
    try:
        app(prog_name="patcher")
    except Launch as launch:
        target = launch.target
    except Exception as error:
        terminal.fail(error)
        sys.exit(FAILED)
    finally:
        sys.excepthook = hook  # some releases of typer leave their own
    if target is not None:
        target.run()
