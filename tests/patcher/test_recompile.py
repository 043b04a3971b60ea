import inspect
import linecache
import pickle
import sys
import textwrap
import traceback

import pytest

from patcher import _engine
from patcher._errors import RewriteError, SourceUnavailable
from tests.support.rewrites import edit, rewrite

RETURN = edit("return $X", "return __patcher__.add($X)", "replace")


def patched(packages, source, *edits, target="upstream:f", **more):
    module = packages.load(source)
    before = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    _engine.apply([rewrite(*(edits or [RETURN]), target=target, **more)])
    return module, before


def test_everything_but_the_body_is_the_original(packages):
    source = '''
    from __future__ import annotations

    def f(a: Missing, /, b: int = 2, *rest, c=[3], **more) -> Missing:
        """Doc."""
        return a + b
    f.tag = {}
    f.__doc__ = "Other."
    f.__qualname__ = "Outer.f"
    '''
    module, before = patched(packages, source)
    new, old = module.f, before["f"]
    assert new is not old
    assert new(1) == 1003
    for name in (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__annotations__",
    ):
        assert getattr(new, name) == getattr(old, name), name
    assert new.__kwdefaults__["c"] is old.__kwdefaults__["c"]
    assert new.__globals__ is old.__globals__
    assert new.tag is old.tag
    assert inspect.signature(new) == inspect.signature(old)
    nofree = 0x40  # set up to 3.10 for a function without closure cells
    assert new.__code__.co_flags | nofree == old.__code__.co_flags | nofree
    assert new.__code__.co_freevars == ("__patcher__",)


def test_super_private_names_and_qualified_names(packages):
    source = """
    names = []
    class Base:
        def f(self):
            return 1
    class Upper(Base):
        class Inner(Base):
            __secret = 10
            def f(self):
                def g():
                    return super(Upper.Inner, self).f()
                names.append(g.__qualname__)
                return super().f() + self.__secret + g()
    """
    module, _ = patched(packages, source, target="upstream:Upper.Inner.f")
    assert module.Upper.Inner().f() == 1012
    assert module.names == ["Upper.Inner.f.<locals>.g"]


def test_a_super_call_may_be_injected_only_where_the_class_cell_is(packages):
    source = "class A:\n    def f(self):\n        return 1\n"
    with pytest.raises(RewriteError, match="__class__"):
        patched(packages, source, edit("return 1", "super().__init__()"), target="upstream:A.f")


def test_closures_are_shared_with_the_original(packages):
    source = """
    def make(start):
        count = start
        def f(step):
            nonlocal count
            count += step
            return count
        def g():
            return count
        return f, g
    f, g = make(5)
    """
    module, _ = patched(packages, source)
    assert module.f(2) == 1007
    assert module.g() == 7
    assert module.f.__qualname__ == "make.<locals>.f"


@pytest.mark.parametrize(
    ("decorator", "call"),
    [
        ("@staticmethod", "module.C.f(1)"),
        ("@classmethod", "module.C.f(1)"),
        ("@noted", "module.C().f(1)"),
        ("@noted\n    @noted", "module.C().f(1)"),
        ("@staticmethod\n    @noted", "module.C.f(1)"),
        ("@functools.lru_cache(maxsize=3)", "module.C().f(1)"),
        ("@contextlib.contextmanager", "module.C().f(1).__enter__()"),
    ],
)
def test_decorators_are_kept_and_not_run_again(packages, decorator, call):
    first = {"@staticmethod": "", "@classmethod": "cls, "}.get(decorator.partition("\n")[0], "self, ")
    body = "yield x" if "context" in decorator else "return x"
    source = f"""
import contextlib, functools
ran = []
def noted(function):
    ran.append(function)
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) + 1
    return wrapper
class C:
    {decorator}
    def f({first}x):
        {body}
"""
    module = packages.load(source)
    ran, kind, shown = len(module.ran), type(vars(module.C)["f"]), vars(module.C)["f"]
    pattern = "yield $X" if "context" in decorator else "return $X"
    this = rewrite(edit(pattern, pattern.replace("$X", "__patcher__.add($X)"), "replace"), target="upstream:C.f")
    before = eval(call)
    _engine.apply([this])
    assert eval(call) == before + 1000
    assert len(module.ran) == ran
    assert type(vars(module.C)["f"]) is kind
    _engine.revert()
    assert vars(module.C)["f"] is shown
    assert eval(call.replace("(1)", "(2)")) == before + 1


def test_a_property(packages):
    module, _ = patched(
        packages, "class C:\n    @property\n    def f(self):\n        return 1\n", target="upstream:C.f"
    )
    assert module.C().f == 1001


def test_generators_coroutines_and_async(packages):
    source = "async def f(x):\n    return x\n"
    module, _ = patched(packages, source)
    coroutine = module.f(1)
    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    assert caught.value.value == 1001


def test_pickle_by_reference(packages):
    module, _ = patched(packages, "class C:\n    def f(self):\n        return 1\n", target="upstream:C.f")
    assert pickle.loads(pickle.dumps(module.C.f)) is module.C.f


def test_tracebacks_inspect_and_linecache_show_the_edited_lines(packages):
    source = "import os\n\x0c\n\ndef f(x):\n    y = 1\n    return y / x\n"
    module, _ = patched(packages, source, edit("return $X", "__patcher__.note(y)\n__patcher__.note(x)"))
    shown = inspect.getsource(module.f)
    assert shown == ("def f(x):\n    y = 1\n    __patcher__.note(y)\n    __patcher__.note(x)\n    return y / x\n")
    linecache.checkcache()
    try:
        module.f(0)
    except ZeroDivisionError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
    assert (last.lineno, last.line, last.name) == (8, "return y / x", "f")
    assert inspect.getsourcelines(module.f)[1] == 4


def test_decorated_source_is_shown_with_its_decorators(packages):
    source = """
    import functools
    def keep(f):
        return f
    @keep
    @keep
    def f(x):
        return x
    """
    module, _ = patched(packages, source)
    assert inspect.getsource(module.f).startswith("@keep\n@keep\ndef f(x):")


def test_method_calls_on_imported_names_compile_as_upstream(packages):
    # CPython compiles these by looking at the imports of the whole module
    source = """
    from os import path
    try:
        import json
    except ImportError:
        json = None
    def f(x):
        path.join("a", x)
        return json.dumps(x)
    """
    module, _ = patched(packages, source, edit("return $X", "__patcher__.note(x)"))
    assert module.f("b") == '"b"'


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are new in 3.12")
def test_type_parameters(packages):
    source = "class C[T]:\n    def f[S: int](self, x: S) -> T:\n        y: S = x\n        return (S, x)[1]\n"
    module, _ = patched(packages, source, target="upstream:C.f")
    assert [str(p) for p in module.C.f.__type_params__] == ["S"]
    assert module.C().f(1) == 1001


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import upstream
from patcher import _engine
from tests.support.rewrites import edit, rewrite
_engine.apply([rewrite(edit("return $X", "return __patcher__.add($X)", "replace"))])
print(upstream.f(1), upstream.f.__doc__)
"""


@pytest.mark.parametrize("flags", [[], ["-O"], ["-OO"], ["-B"], ["-X", "no_debug_ranges"]])
def test_interpreter_flags(packages, python, flags):
    packages.write({"upstream.py": 'def f(x):\n    """Doc."""\n    assert x > 5 or __debug__\n    return x\n'})
    out = python(*flags, "-c", SCRIPT.format(folder=str(packages.folder)))
    assert out.split() == ["1001", "None" if "-OO" in flags else "Doc."]


def test_spawned_workers_find_the_function_by_name(packages, python):
    packages.write({"upstream.py": "def f(x):\n    return x\n"})
    script = textwrap.dedent("""
        import multiprocessing, sys
        sys.path.insert(0, {folder!r})
        import upstream
        from patcher import _engine
        from tests.support.rewrites import edit, rewrite
        _engine.apply([rewrite(edit("return $X", "return __patcher__.add($X)", "replace"))])
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(upstream.f(1), pool.apply(upstream.f, (2,)))
        """).format(folder=str(packages.folder))
    packages.write({"main.py": script})
    out = python(str(packages.folder / "main.py"))
    assert out.split() == ["1001", "1002"]


def test_a_wrapper_without_a_closure_is_refused(packages):
    source = "import functools\ndef g(x):\n    return x\ndef f(x):\n    return g(x)\nf.__wrapped__ = g\n"
    from patcher._errors import TargetMissing

    with pytest.raises(TargetMissing, match="does not hold the wrapped function"):
        patched(packages, source)


def test_a_partial_is_refused(packages):
    from patcher._errors import TargetMissing

    with pytest.raises(TargetMissing, match="partial"):
        patched(packages, "import functools\nf = functools.partial(print, 1)\n")


def test_a_function_put_there_from_elsewhere_is_refused(packages):
    module = packages.load("def f(x):\n    return x\n")
    module.f = eval("lambda x: x")
    with pytest.raises(SourceUnavailable, match="lambda"):
        _engine.apply([rewrite(RETURN)])
