import ast

import pytest

from patcher._errors import TargetMissing
from patcher._locate import by_line, by_name

SOURCE = """
class A:
    if x:
        def only(self): ...
    def f(self): ...
    def f(self, again): ...
    class B:
        @d
        @e
        def f(self):
            def inner(): ...

if y:
    def either(): ...
else:
    def either(): ...

@overload
def many(a): ...
@typing.overload
def many(b): ...
def many(a, b=1): ...

try:
    async def waits(): ...
except ImportError:
    pass

if TYPE_CHECKING:
    @overload
    def many(c): ...
"""
TREE = ast.parse(SOURCE)


@pytest.mark.parametrize(
    ("name", "line", "depth"),
    [
        ("A.only", 4, 2),
        ("A.f", 6, 2),  # the last definition of a block stays bound
        ("A.B.f", 10, 3),
        ("A.B.f.<locals>.inner", 11, 4),
        ("many", 22, 1),
        ("waits", 25, 1),
    ],
)
def test_by_name(name, line, depth):
    path = by_name(TREE, name)
    assert (path[-1].lineno, len(path)) == (line, depth)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("either", "several branches"),
        ("absent", "does not define 'absent'"),
        ("A.g", "A does not define 'g'"),
        ("A", "is a class"),
    ],
)
def test_what_cannot_be_found(name, message):
    with pytest.raises(TargetMissing, match=message):
        by_name(TREE, name)


def test_by_line_counts_decorators_and_tells_branches_apart():
    assert [node.name for node in by_line(TREE, "f", 8)] == ["A", "B", "f"]
    assert by_line(TREE, "either", 14)[-1].lineno == 14
    assert by_line(TREE, "either", 16)[-1].lineno == 16
    assert by_line(TREE, "f", 10) is None
    assert by_line(TREE, "inner", 11)[-1].name == "inner"
