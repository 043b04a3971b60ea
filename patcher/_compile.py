"""Compiles one function out of a module's text without running anything of that text.

The definitions around the function (classes, outer functions) are kept bare, so that zero-argument ``super()``,
private names, qualified names and closure variables come out as they do in the whole module.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterable, Iterator
from types import CodeType

from patcher._errors import SourceUnavailable
from patcher._locate import Scope

FUTURE_FLAGS = 0
for _feature in __future__.all_feature_names:
    FUTURE_FLAGS |= getattr(__future__, _feature).compiler_flag

_CO_NESTED = 0x10


def function_code(
    tree: ast.Module, path: list[Scope], filename: str, like: CodeType, extra: Iterable[str] = ()
) -> CodeType:
    """The code object of a function.

    Args:
        tree: the whole module.
        path: the definitions from the module down to the function.
        filename: what the code object calls its file.
        like: code of the loaded function: its ``__future__`` flags, closure variables and nesting are kept.
        extra: further names that are closure variables of the function if its text uses them.
    """
    bound = [name for name in (*like.co_freevars, *extra) if name != "__class__"]
    module = ast.Module(body=[*_imports(tree), _scaffold(path, bound)], type_ignores=[])
    ast.fix_missing_locations(module)
    flags = like.co_flags & FUTURE_FLAGS
    code: CodeType | None = compile(module, filename, "exec", flags=flags, dont_inherit=True)
    names = [node.name for node in path]
    if not isinstance(path[0], ast.FunctionDef | ast.AsyncFunctionDef) or len(path) == 1:
        names.insert(0, "__patcher_scope__")
    for name in names:
        code = _child(code, name)
        if code is None:
            raise SourceUnavailable(f"the compiler gives no code for {'.'.join(names)}")
    return code.replace(co_flags=(code.co_flags & ~_CO_NESTED) | (like.co_flags & _CO_NESTED))


def _imports(scope: ast.AST) -> Iterator[ast.stmt]:
    """The module's own import statements: CPython compiles a method call on an imported name differently."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            yield node
        elif not isinstance(node, ast.expr | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(node)


def _scaffold(path: list[Scope], bound: list[str]) -> ast.stmt:
    """The path with nothing but its definitions; the outermost function binds the closure variables."""
    inner: ast.stmt = path[-1]
    wrapped = False
    for depth in range(len(path) - 2, -1, -1):
        node = path[depth]
        if isinstance(node, ast.ClassDef):
            inner = ast.ClassDef(name=node.name, bases=[], keywords=[], body=[inner], decorator_list=[], type_params=[])
        else:
            outermost = not any(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in path[:depth])
            inner = bare_function(node.name, bound if outermost else [], [inner])
            wrapped = True
        ast.copy_location(inner, node)
    if wrapped and not isinstance(path[0], ast.ClassDef):
        return inner
    # `global` keeps the qualified names those of the module's top level
    scope = bare_function("__patcher_scope__", [] if wrapped else bound, [ast.Global(names=[path[0].name]), inner])
    return ast.copy_location(scope, path[0])


def bare_function(name: str, arguments: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """A function definition, with every field that the compiler asks for."""
    args = ast.arguments(
        posonlyargs=[], args=[ast.arg(arg=name) for name in arguments], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return ast.FunctionDef(name=name, args=args, body=body, decorator_list=[], type_params=[])


def _child(code: CodeType, name: str) -> CodeType | None:
    """The code object of that name directly inside another; type parameters put a scope of their own between."""
    children = [const for const in code.co_consts if isinstance(const, CodeType)]
    for child in children:
        if child.co_name == name:
            return child
    for child in children:
        if child.co_name.startswith("<generic parameters of") and (found := _child(child, name)):
            return found
    return None


def same_code(left: CodeType, right: CodeType) -> bool:
    """Whether two code objects do the same on the same lines; files and columns do not count."""
    plain = (
        "co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars",
        "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_firstlineno",
    )  # fmt: skip
    if any(getattr(left, name) != getattr(right, name) for name in plain):
        return False
    if len(left.co_consts) != len(right.co_consts):
        return False
    return all(_same_const(a, b) for a, b in zip(left.co_consts, right.co_consts, strict=True))


def _same_const(left: object, right: object) -> bool:
    if isinstance(left, CodeType) and isinstance(right, CodeType):
        return same_code(left, right)
    if isinstance(left, frozenset):
        return left == right
    # repr tells 1 from True, 0.0 from -0.0 and nan from anything else
    return type(left) is type(right) and repr(left) == repr(right)
