"""The benchmark of an idle runtime measures steps with it and without, and leaves the model bare."""

from contextlib import contextmanager

import torch

from tools import bench_idle

SETTINGS = bench_idle.SETTINGS | {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
SETTINGS |= {"num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}


def test_the_runtime_is_attached_for_one_way_in_three(monkeypatch):
    seen, attached, seconds = [], bench_idle._attached, bench_idle._seconds
    inside = False

    @contextmanager
    def noted(model):
        nonlocal inside
        with attached(model):
            inside = bool(model._forward_pre_hooks and model.model._forward_pre_hooks)
            yield
        inside = bool(model._forward_pre_hooks)

    def timed(call, device):
        seen.append(inside)
        seconds(call, device)
        return 3.0 if inside else 2.0

    monkeypatch.setattr(bench_idle, "_attached", noted)
    monkeypatch.setattr(bench_idle, "_seconds", timed)
    idle = bench_idle.cost(SETTINGS, 8, torch.device("cpu"), torch.float32, rounds=2)
    assert seen == [False, True, False] * 3 + [False, True]
    assert (idle.step, idle.runtime, idle.noise) == (2.0, 0.5, 0.0)
    assert idle.hooks == 1.0 / 200
    assert not inside
    assert bench_idle.rows(idle)[1][1] == "+50.00%"
