"""A whole model: one training step of a packed row in every way, and the same documents padded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn

from replacements.kernels.backends import table
from replacements.kernels.backends.backend import Backend
from replacements.kernels.backends.registry import choose
from replacements.kernels.segments import Segments
from replacements.packing.measuring import largest_difference, log_probs
from replacements.packing.probe import probe
from replacements.packing.runtime import attach, detach_all
from tools.bench_cases import APART, CASES, NATIVE, OURS, STOCK
from tools.bench_measure import Figures, Step, measure

ACCELERATED, PADDED, AGAIN = "ours, accelerated", "padded, accelerated", "accelerated, again"
#: The kernels of Qwen3.5's mixer: names in its module, and the operations.
_GLOBALS = {"causal_conv1d_fn": "causal_conv1d", "torch_chunk_gated_delta_rule": "gated_delta_rule"}

#: The text model of Qwen3.5-0.8B.
QWEN3_5 = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248320,
}
SMALL = QWEN3_5 | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "num_attention_heads": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "vocab_size": 2048,
}


def build(settings: dict[str, Any], device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A randomly initialised Qwen3.5 text model in training mode."""
    config = transformers.Qwen3_5TextConfig(**settings, pad_token_id=0, tie_word_embeddings=True, use_cache=False)
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.Qwen3_5ForCausalLM(config).to(dtype).train()


def packed(lengths: list[int], vocabulary: int, device: torch.device) -> dict[str, torch.Tensor]:
    """One row of random documents as TRL's collator emits it."""
    tokens = sum(lengths)
    generator = torch.Generator().manual_seed(0)
    row = {
        "input_ids": torch.randint(3, vocabulary, (1, tokens), generator=generator),
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "seq_idx": torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))[None],
    }
    row["labels"] = row["input_ids"].masked_fill(row["position_ids"] == 0, -100)
    return {name: x.to(device) for name, x in row.items()}


def padded(row: dict[str, torch.Tensor], lengths: list[int]) -> list[dict[str, torch.Tensor]]:
    """The same documents in batches of at most as many slots as the row has, in the order in which they came."""
    documents = row["input_ids"][0].split(lengths)
    batches: list[list[torch.Tensor]] = [[]]
    for document in documents:
        longest = max([len(document), *map(len, batches[-1])])
        if longest * (len(batches[-1]) + 1) > sum(lengths):
            batches.append([])
        batches[-1].append(document)
    made = []
    for batch in batches:
        ids = nn.utils.rnn.pad_sequence(batch, batch_first=True)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(d) for d in batch], batch_first=True)
        labels = ids.masked_fill(mask == 0, -100)
        made.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return made


@dataclass(frozen=True)
class Ways:
    """The ways to run a model on one packed row; each is a context in which the model computes that way."""

    model: nn.Module
    segments: Segments
    device: torch.device

    @contextmanager
    def _globals(self, made: dict[str, Callable[..., Any]]) -> Iterator[None]:
        module = sys.modules[type(self.model).__module__]
        with ExitStack() as stack:
            for name, function in made.items():
                stack.enter_context(mock.patch.object(module, name, function))
            yield

    def stock(self) -> Any:
        """Transformers' own torch functions, packages or not."""
        return self._globals({name: CASES[op].fallback() for name, op in _GLOBALS.items()})

    def apart(self) -> Any:
        """The same, document by document."""
        return self._globals({name: self._by_document(CASES[op].fallback(), op) for name, op in _GLOBALS.items()})

    def _by_document(self, fallback: Callable[..., Any], op: str) -> Callable[..., Any]:
        time_axis = 2 if op == "causal_conv1d" else 1
        tokens, lengths = self.segments.total, self.segments.lengths.tolist()

        def parts(x: Any) -> Any:
            whole = isinstance(x, torch.Tensor) and x.dim() > time_axis and x.shape[time_axis] == tokens
            return x.split(lengths, time_axis) if whole else [x] * len(lengths)

        def call(*args: Any, **kwargs: Any) -> Any:
            split, named = [parts(x) for x in args], {name: parts(x) for name, x in kwargs.items()}
            outputs = []
            for i in range(len(lengths)):
                result = fallback(*(x[i] for x in split), **{name: x[i] for name, x in named.items()})
                outputs.append(result[0] if isinstance(result, tuple) else result)
            joined = torch.cat(outputs, time_axis)
            return joined if op == "causal_conv1d" else (joined, None)

        return call

    @contextmanager
    def ours(self, *, accelerated: bool) -> Iterator[None]:
        """With boundaries attached, over the torch operations or over the backends."""
        never = table.NEVER_ON if accelerated else table.NEVER_ON | {self.device.type}
        attach(self.model)
        try:
            with mock.patch.object(table, "NEVER_ON", never):
                yield
        finally:
            detach_all()

    @contextmanager
    def native(self, convolution: Backend, scan: Backend) -> Iterator[Callable[[], None]]:
        """The kernels called by hand with the boundaries, nothing between; gives what makes the boundaries anew.

        The kernels remember what they made of the boundaries that they saw last, and those of a batch are new.
        """
        batch: list[Segments] = []

        def renew() -> None:
            batch[:] = [Segments(self.segments.lengths)]
            for device in (self.device, "cpu"):
                batch[0].cu_seqlens(device)

        def conv(x: torch.Tensor, weight: Any, bias: Any = None, activation: Any = None, **_: Any) -> torch.Tensor:
            arguments = {"x": x, "weight": weight, "bias": bias, "activation": activation}
            return convolution.call(convolution.kernel, arguments, batch[0], {})

        def rule(q: Any, k: Any, v: Any, g: Any, beta: Any, **_: Any) -> Any:
            boundaries = {"cu_seqlens": batch[0].cu_seqlens(q.device), "cu_seqlens_cpu": batch[0].cu_seqlens("cpu")}
            return scan.kernel(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, **boundaries)

        renew()
        with self._globals({"causal_conv1d_fn": conv, "torch_chunk_gated_delta_rule": rule}):
            yield renew

    def unpacked(self, convolution: Backend) -> Any:
        """The kernels on batches of one document a row."""

        def conv(x: torch.Tensor, weight: Any, bias: Any = None, activation: Any = None, **_: Any) -> torch.Tensor:
            rows = Segments([x.shape[2]] * x.shape[0], rows=x.shape[0])
            arguments = {"x": x, "weight": weight, "bias": bias, "activation": activation}
            return convolution.call(convolution.kernel, arguments, rows, {})

        return self._globals({"causal_conv1d_fn": conv})

    def all(self, *, slow: bool = True) -> dict[str, Callable[[], Any]]:
        """Every way that there is here, each a function that opens its context."""
        found: dict[str, Callable[[], Any]] = {}
        if slow:
            found |= {STOCK: self.stock, APART: self.apart}
        found[OURS] = lambda: self.ours(accelerated=False)
        backends = working(self.model, self.segments, self.device)
        if backends is not None:
            found[NATIVE] = lambda: self.native(*backends)
            found[ACCELERATED] = lambda: self.ours(accelerated=True)
        return found


def working(model: nn.Module, segments: Segments, device: torch.device) -> tuple[Backend, Backend] | None:
    """The backends of the convolution and the scan at this model's widths, if both have one."""
    config, dtype = model.config, model.dtype
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    given = [CASES[op].arguments(heads, width, 8, device, dtype) for op in _GLOBALS.values()]
    found = [choose(op, x, segments) for op, x in zip(_GLOBALS.values(), given, strict=True)]
    return None if None in found else (found[0], found[1])


def training_step(model: nn.Module, batches: list[dict[str, torch.Tensor]]) -> Step:
    """A forward and backward over batches; of several the last backward is timed as one, the rest as the forward."""

    def backward(loss: torch.Tensor) -> None:
        loss.backward()
        model.zero_grad(set_to_none=True)

    def step() -> Callable[[], None]:
        for batch in batches[:-1]:
            model(**batch).loss.backward()
        loss = model(**batches[-1]).loss
        return lambda: backward(loss)

    return step


def compare(
    model: nn.Module, lengths: list[int], device: torch.device, repeats: int, *, slow: bool, apart: bool
) -> dict[str, Figures]:
    """A training step on one packed row in every way, and on the same documents padded where kernels are.

    Args:
        model: The model.
        lengths: Documents of the row.
        device: Where the model is.
        repeats: Rounds.
        slow: Whether to take the stock fallback too.
        apart: Whether to take one scan per document too.
    """
    row = packed(lengths, model.config.vocab_size, device)
    choices = Ways(model, Segments(lengths), device)
    ways = choices.all(slow=slow)
    if not apart:
        ways.pop(APART, None)
    plain = {name: x for name, x in row.items() if name != "seq_idx"}
    steps = {name: training_step(model, [row if name in (OURS, ACCELERATED) else plain]) for name in ways}
    backends = working(model, choices.segments, device)
    if backends is not None:
        ways[PADDED] = lambda: choices.unpacked(backends[0])
        steps[PADDED] = training_step(model, padded(row, lengths))
    return measure(steps, device, repeats, ways)


def against_native(
    model: nn.Module, lengths: list[int], device: torch.device, repeats: int
) -> dict[str, Figures] | None:
    """A training step by kernels called by hand, by ours over the same kernels, and by hand again; None without them.

    The runtime is attached and has run a forward before the clock starts, as it has in all steps of a run but one;
    so has each of the others.
    """
    row = packed(lengths, model.config.vocab_size, device)
    choices = Ways(model, Segments(lengths), device)
    ways = choices.all(slow=False)
    if NATIVE not in ways:
        return None
    plain = {name: x for name, x in row.items() if name != "seq_idx"}
    batches = {NATIVE: plain, ACCELERATED: row, AGAIN: plain}

    @contextmanager
    def warm(way: Callable[[], Any], batch: dict[str, torch.Tensor]) -> Iterator[None]:
        with way() as renew:
            with torch.no_grad():
                model(**batch)
            if renew is not None:  # the batch that is timed brings new boundaries, made before the clock starts
                renew()
            yield

    around = {name: partial(warm, ways[NATIVE if name == AGAIN else name], batch) for name, batch in batches.items()}
    return measure({n: training_step(model, [batch]) for n, batch in batches.items()}, device, repeats, around)


def agreement(model: nn.Module, lengths: list[int], device: torch.device) -> dict[str, float]:
    """Largest difference of a log-probability to the documents alone, in every way; and the model's own noise.

    The noise is that of the documents alone against themselves in batches of other shapes: twice in one, and followed
    by as many other tokens as the packed row has.
    """
    row = packed(lengths, model.config.vocab_size, device)
    documents = row["input_ids"][0].split(lengths)
    ways = Ways(model, Segments(lengths), device).all(slow=False)
    model.eval()
    with torch.no_grad():
        alone = [log_probs(model, {"input_ids": d[None]}) for d in documents]
        found = {"noise": max(_noise(model, d, a, row["input_ids"]) for d, a in zip(documents, alone, strict=True))}
        for name, way in ways.items():
            inputs = {n: row[n] for n in ("input_ids", "position_ids")}
            if name in (OURS, ACCELERATED):
                inputs["seq_idx"] = row["seq_idx"]
            with way():
                got = log_probs(model, inputs).split(lengths)
            found[name] = max(largest_difference(a, b) for a, b in zip(got, alone, strict=True))
    model.train()
    return found


def _noise(model: nn.Module, document: torch.Tensor, alone: torch.Tensor, row: torch.Tensor) -> float:
    twice = log_probs(model, {"input_ids": document.repeat(2, 1)})
    behind = torch.cat([document[None], row[:, len(document) :]], 1)
    longer = log_probs(model, {"input_ids": behind}, slice(len(document)))
    return max(largest_difference(got, alone) for got in (twice, longer))


def probe_cost(model: nn.Module, device: torch.device) -> dict[str, float]:
    """Seconds of the guard's probe, the first time (kernels compile) and again."""
    attach(model)
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        probe(model)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    detach_all()
    return {"first": taken[0], "again": min(taken[1:])}
