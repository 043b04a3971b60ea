"""The source text of a loaded function: the whole text of its module, proved to be what was loaded."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass
from types import FunctionType

from patcher._compile import function_code, same_code
from patcher._edits import find_path, parse
from patcher._errors import SourceUnavailable


@dataclass(frozen=True)
class Source:
    """Text of the module that defines a function.

    Attributes:
        text: the whole text, with the line ends that linecache gives it.
        line: first line of the function, decorators included.
        name: name of the definition there.
    """

    text: str
    line: int
    name: str


def of(function: object, what: str) -> Source:
    """The source of a function.

    Args:
        function: the function itself, without wrappers.
        what: how to call it in errors.

    Raises:
        SourceUnavailable: there is no text, or it is not the text of the loaded code.
    """
    if not isinstance(function, FunctionType):
        kind = type(function).__name__
        raise SourceUnavailable(f"{what} has no Python source: it is a {kind} (built in or compiled), not a function")
    code = function.__code__
    if code.co_name == "<lambda>":
        raise SourceUnavailable(
            f"{what} is a lambda (line {code.co_firstlineno} of {code.co_filename}); it has no body"
        )
    text = _text(function, what)
    try:
        tree = parse(text, code.co_filename)
        path = find_path(tree, code.co_name, code.co_firstlineno, code.co_name)
    except SourceUnavailable as error:
        raise SourceUnavailable(f"{what}: {error}. {_STALE}", remedy=_RESTART) from error
    if not same_code(function_code(tree, path, code.co_filename, code), code):
        unlike = f"{what}: the text in {code.co_filename} does not compile to the loaded code"
        raise SourceUnavailable(f"{unlike}. {_STALE}", remedy=_RESTART)
    return Source(text, code.co_firstlineno, code.co_name)


_STALE = (
    "The file changed after it was imported, or an import hook (assertion rewriting, type checking) changed the code "
    "as it was loaded"
)
_RESTART = "Restart Python, or import patcher before the tool that does so"
_INSTALL = "Install the package with its .py files"


def _text(function: FunctionType, what: str) -> str:
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    text = "".join(linecache.getlines(filename, function.__globals__))
    if text.strip():
        return text
    reason, remedy = _missing(filename, function.__globals__)
    raise SourceUnavailable(f"{what}: {reason}", remedy=remedy)


def _missing(filename: str, namespace: dict) -> tuple[str, str]:
    """Why there is no text, and what to do where that is not to upgrade."""
    spec = namespace.get("__spec__")
    origin = getattr(spec, "origin", None) or filename
    loader = type(getattr(spec, "loader", None)).__name__
    if filename.startswith("<frozen") or origin == "frozen":
        return "it is frozen into the executable, without source", "Run from an installation that has .py files"
    if filename.startswith("<"):
        return f"its code comes from {filename}, which no file or notebook cell holds (exec, or a session)", _INSTALL
    if os.path.exists(filename):
        return f"its source file {filename} is empty or cannot be decoded", "Reinstall the package"
    if "zip" in loader.lower():
        return f"the zip archive that it was imported from holds no source ({filename})", "Put the .py files in it"
    if origin.endswith(".pyc"):
        return f"only byte code is installed ({origin})", _INSTALL
    return f"its source file {filename} is not there", _INSTALL
