"""Each generation's way to a kernel, on mixers of its shape: stock without boundaries, the op with them."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from replacements.kernels.causal_conv1d import causal_conv1d
from replacements.kernels.segments import Segments
from replacements.packing import dispatch
from replacements.packing.current import Scope, current, restored
from replacements.packing.families import CONV, Family, Mixer

WIDTH, CHANNELS = 4, 6
SEGMENTS = Segments([3, 1, 5])


@pytest.fixture(autouse=True)
def _unwrapped():
    yield
    dispatch.unwrap_all()


def stock_conv(x, weight, bias=None, activation=None, **kwargs):
    out = F.conv1d(x, weight[:, None], bias, padding=WIDTH - 1, groups=CHANNELS)[..., : x.shape[-1]]
    return F.silu(out) if activation else out


class Convolving(nn.Module):
    """What the mixers of all generations share."""

    def __init__(self):
        super().__init__()
        self.conv1d = nn.Conv1d(CHANNELS, CHANNELS, WIDTH, groups=CHANNELS, padding=WIDTH - 1)

    def arguments(self):
        return self.conv1d.weight.squeeze(1), self.conv1d.bias


class GlobalMixer(Convolving):
    """Calls a global of its module (transformers from 5.15)."""

    def forward(self, x):
        return causal_conv1d_fn(x, *self.arguments(), activation="silu")  # noqa: F821


class AttributeMixer(Convolving):
    """Holds its kernel, or `None`, and then convolves in line (to 5.14)."""

    def __init__(self):
        super().__init__()
        self.causal_conv1d_fn = None

    def forward(self, x):
        if self.causal_conv1d_fn is not None:
            weight, bias = self.arguments()
            return self.causal_conv1d_fn(x=x, weight=weight, bias=bias, activation="silu", seq_idx=None)
        return F.silu(self.conv1d(x)[..., : x.shape[-1]])


class PairedMixer(Convolving):
    """Has a method for kernels beside one that writes the operations out (to 5.14)."""

    def cuda_kernels_forward(self, x):
        if self.training:
            return mamba_inner_fn(x)  # noqa: F821
        return causal_conv1d_fn(x, *self.arguments(), activation="silu")  # noqa: F821

    def slow_forward(self, x):
        return F.silu(self.conv1d(x)[..., : x.shape[-1]])

    def forward(self, x):
        return self.slow_forward(x)


@pytest.fixture(params=[GlobalMixer, AttributeMixer, PairedMixer])
def mixer(request, monkeypatch):
    """A mixer whose class lives in a module of its own, with the kernels as that generation has them."""
    home = types.ModuleType("modeling_of_a_generation")
    home.causal_conv1d_fn = stock_conv if request.param is GlobalMixer else None
    home.mamba_inner_fn = None
    home.F = F
    monkeypatch.setitem(sys.modules, home.__name__, home)
    cls = type(request.param.__name__, (request.param,), {"__module__": home.__name__})
    for name, member in vars(request.param).items():
        if isinstance(member, types.FunctionType) and name != "__init__":
            setattr(
                cls,
                name,
                types.FunctionType(member.__code__, vars(home), name, member.__defaults__, member.__closure__),
            )
    torch.manual_seed(0)
    return cls()


def mixers(module):
    return {module: Mixer("layers.0.mixer", Family("generation", (type(module).__name__,), (CONV,)), (CONV,))}


@pytest.fixture
def family_home(monkeypatch):
    monkeypatch.setattr(Family, "module", property(lambda self: "modeling_of_a_generation"))


@pytest.fixture
def packed_scope(mixer):
    scope = Scope(owner=None, door=None, segments=SEGMENTS, rows=1, length=SEGMENTS.total)
    scope.mixer = mixer
    return scope


def test_with_boundaries_the_op_runs_and_is_noted(mixer, family_home, packed_scope):
    dispatch.wrap(dispatch.points_of(mixers(mixer)))
    x = torch.randn(1, CHANNELS, SEGMENTS.total)
    with restored(packed_scope):
        got = mixer(x)
    expected = causal_conv1d(x, *mixer.arguments(), SEGMENTS, "silu")
    torch.testing.assert_close(got, expected)
    assert packed_scope.used[mixer] == {CONV}


def test_without_boundaries_it_is_the_original_bit_for_bit(mixer, family_home):
    x = torch.randn(1, CHANNELS, SEGMENTS.total)
    before = mixer(x)
    dispatch.wrap(dispatch.points_of(mixers(mixer)))
    assert current() is None
    assert torch.equal(mixer(x), before)
    trivial = Scope(owner=None, door=None, segments=None, rows=1, length=SEGMENTS.total)
    with restored(trivial):
        assert torch.equal(mixer(x), before)


def test_training_takes_the_separate_kernels_too(mixer, family_home, packed_scope):
    dispatch.wrap(dispatch.points_of(mixers(mixer)))
    mixer.train()
    with restored(packed_scope):
        mixer(torch.randn(1, CHANNELS, SEGMENTS.total))
    assert packed_scope.used[mixer] == {CONV}
    assert mixer.training


def test_unwrapping_leaves_what_was_there(mixer, family_home):
    holders = {type(mixer), sys.modules["modeling_of_a_generation"]}
    before = {holder: dict(vars(holder)) for holder in holders}
    dispatch.wrap(dispatch.points_of(mixers(mixer)))
    assert dispatch.unwrap_all() == []
    for holder, names in before.items():
        assert all(vars(holder).get(name) is value for name, value in names.items() if name != "__builtins__")
        assert vars(holder).keys() == names.keys()


def test_wrapping_again_wraps_nothing(mixer, family_home):
    points = dispatch.points_of(mixers(mixer))
    dispatch.wrap(points)
    standing = {point: vars(point.holder)[point.name] for point in points}
    dispatch.wrap(dispatch.points_of(mixers(mixer)))
    assert all(vars(point.holder)[point.name] is wrapper for point, wrapper in standing.items())


def test_what_another_library_put_on_top_is_left_alone(mixer, family_home):
    points = dispatch.points_of(mixers(mixer))
    dispatch.wrap(points)
    on_top = object()
    setattr(points[0].holder, points[0].name, on_top)
    assert dispatch.unwrap_all() == [points[0]]
    assert vars(points[0].holder)[points[0].name] is on_top


def test_an_op_that_is_called_in_no_known_way_is_named(family_home):
    class Inline(nn.Module):
        def forward(self, x):
            return x.cumsum(-1)

    mixer = Inline()
    assert dispatch.unreachable(mixers(mixer)) == ["Inline.causal_conv1d"]


def test_a_convolution_called_in_line_is_found(family_home):
    class Inline(Convolving):
        def forward(self, x):
            return self.conv1d(x)

    mixer = Inline()
    assert dispatch.unreachable(mixers(mixer)) == []
    assert dispatch.inline_convolutions(mixer, mixers(mixer)[mixer]) == [mixer.conv1d]


@pytest.mark.parametrize("ours", [True, False], ids=["our mixer", "another model"])
def test_boundaries_are_kept_from_a_kernel_only_where_the_row_is_one_document_of_ours(ours):
    """A model inside our forward that passes boundaries of its own has them reach its kernel."""

    def kernel(x, cu_seqlens=None):
        return cu_seqlens

    said = object()
    wrapped = dispatch.with_boundaries(kernel, "causal_conv1d_fn")
    for segments in (None,) if ours else (None, SEGMENTS):
        scope = Scope(owner=None, door=None, segments=segments, rows=1, length=SEGMENTS.total)
        scope.mixer = nn.Identity() if ours else None
        with restored(scope):
            assert wrapped(None, cu_seqlens=said) is (None if ours else said)
    assert wrapped(None, cu_seqlens=said) is said
