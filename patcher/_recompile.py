"""Makes a function from edited source that is the original in everything but its body."""

from __future__ import annotations

from types import CellType, FunctionType

from patcher import _shown
from patcher._compile import function_code
from patcher._edits import find_path, parse
from patcher._errors import RewriteError
from patcher._namespace import CELL, Namespace


def recompile(original: FunctionType, text: str, line: int, target: str, namespace: Namespace) -> FunctionType:
    """The function with the body that the text gives it.

    Globals, closure cells, defaults, annotations, names, attributes and type parameters are the original's own.
    Decorators are not run again: the caller puts the result where the decorators hold the original.

    Args:
        original: the function as loaded, without wrappers.
        text: the edited text of the whole module.
        line: first line of the function in it.
        target: ``module:qualified.name``.
        namespace: value of the reserved closure cell.

    Raises:
        RewriteError: the edited text needs a closure variable that the original does not have.
    """
    code = original.__code__
    tree = parse(text, target)
    path = find_path(tree, code.co_name, line, code.co_name)
    new_code = function_code(tree, path, _shown.filename(target), code, extra=(CELL,))
    cells = dict(zip(code.co_freevars, original.__closure__ or (), strict=True))
    cells[CELL] = CellType(namespace)
    missing = [name for name in new_code.co_freevars if name not in cells]
    if missing:
        raise RewriteError(f"{target}: the edited text uses {missing}, which the function does not close over")
    closure = tuple(cells[name] for name in new_code.co_freevars)
    return _dress(
        FunctionType(new_code, original.__globals__, original.__name__, original.__defaults__, closure), original
    )


def _dress(new: FunctionType, original: FunctionType) -> FunctionType:
    new.__kwdefaults__ = original.__kwdefaults__
    if getattr(original, "__annotate__", None) is not None:
        new.__annotate__ = original.__annotate__  # evaluated on demand, as upstream's
    else:
        new.__annotations__ = original.__annotations__
    new.__doc__ = original.__doc__
    new.__module__ = original.__module__
    new.__qualname__ = original.__qualname__
    if hasattr(original, "__type_params__"):
        new.__type_params__ = original.__type_params__
    new.__dict__.update(original.__dict__)
    return new


def is_rewritten(function: object) -> bool:
    """Whether a function holds the reserved closure cell."""
    return isinstance(function, FunctionType) and CELL in function.__code__.co_freevars


def rewritten_by(function: FunctionType) -> str | None:
    """Name of the rewrite that made a function, or None."""
    if not is_rewritten(function):
        return None
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(CELL)]
    return getattr(cell.cell_contents, "__rewrite__", None)
