"""The lanes of the version matrix, as data: which releases meet, what each trains, and what TRL itself cannot do."""

from __future__ import annotations

from dataclasses import dataclass

TRL = (
    *("0.22.2", "0.23.1", "0.24.0", "0.26.2", "0.27.2", "0.29.1", "1.0.0"),
    *("1.4.0", "1.7.1", "1.9.2", "1.14.2", "1.15.0", "1.16.0"),
)

# What each transformers is tried with; `pins` in matrix_layers checks these against the wheels' own requirements.
TRANSFORMERS: dict[str, dict[str, str]] = {
    "4.57.6": {"huggingface_hub": "0.36.2", "tokenizers": "0.22.2", "datasets": "4.8.5", "fsspec": "2026.2.0"},
    "5.2.0": {"huggingface_hub": "1.33.0", "tokenizers": "0.22.2", "datasets": "4.8.5", "fsspec": "2026.2.0"},
    "5.9.0": {"huggingface_hub": "1.33.0", "tokenizers": "0.22.2", "datasets": "4.8.5", "fsspec": "2026.2.0"},
    "5.14.1": {"huggingface_hub": "1.33.0", "tokenizers": "0.22.2", "datasets": "4.8.5", "fsspec": "2026.2.0"},
    "5.15.0": {"huggingface_hub": "1.33.0", "tokenizers": "0.22.2", "datasets": "5.2.0"},
    "5.17.0": {"huggingface_hub": "1.33.0", "tokenizers": "0.23.3", "datasets": "5.2.0"},
    "5.20.0": {"huggingface_hub": "2.4.0", "tokenizers": "0.23.3", "datasets": "5.2.0"},
    "5.24.0": {"huggingface_hub": "2.4.0", "tokenizers": "0.23.3", "datasets": "5.2.0"},
}

# The web clients that some huggingface_hub and datasets import and a base environment need not have. They come last on
# the path: whatever the base has in their place is the same to a lane, which never goes online.
COMPANIONS = {
    "requests": "2.34.2",
    "urllib3": "2.8.0",
    "certifi": "2026.10.19.post1",
    "charset-normalizer": "3.5.3",
    "idna": "3.20",
    "httpx": "0.28.1",
    "httpcore": "1.0.9",
    "h11": "0.16.0",
    "anyio": "4.16.0",
}

# Releases that TRL itself cannot train with here, told by the function that stock TRL fails in, and why. Such a lane
# still runs, and counts as unable only if stock TRL and patched TRL both fail there with the same error.
TRL_CANNOT: dict[str, tuple[str, str]] = {
    "1.15.0": ("_fused_forward", "TRL's fused LM head has no torch path: it needs triton, which is not installed"),
}

# Families whose every mixer op can be isolated: padding them would be safe, and a loss the lane must not hide.
MUST_PACK = frozenset({"qwen3_next", "qwen3_5"})


# Ways to train in which the result must be right or the patch must refuse with its own error; elsewhere it must train.
MAY_REFUSE = frozenset({"eval_packing alone", "eval_packing off"})


@dataclass(frozen=True)
class Lane:
    """One pair of releases, the tiny families it trains packed, and further ways in which it trains the first of them.

    Families are names of tests/families.json, ways are those of tests/matrix/smoke.py. `beside` are further layers.
    """

    trl: str
    transformers: str
    families: tuple[str, ...] = ("qwen3_next", "qwen3_5")
    extras: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The lane's name, as it is written on the command line and in the tables."""
        return "+".join([f"trl-{self.trl}-tf-{self.transformers}", *(package for package, _ in self.beside)])

    @property
    def layers(self) -> tuple[tuple[str, str], ...]:
        """The (package, version) pairs that lie over the base environment, first on the path first."""
        pins = TRANSFORMERS[self.transformers].items()
        return (("trl", self.trl), ("transformers", self.transformers), *pins, *self.beside)


# At least one lane for every range in which TRL behaves alike, and for every way transformers reaches a kernel:
# instance attributes (≤5.14.1), a method pair on module globals (≤5.14.1: lfm2, mamba2), decorated module functions
# (5.15+, first dropping boundaries in silence, from 5.20 refusing them), and none at all (minimax).
_MORE = ("qwen3_next", "qwen3_5", "lfm2", "mamba2")
_EVAL = ("eval_packing alone", "eval_packing off")
CI = (
    Lane("0.22.2", "4.57.6", _MORE, ("padding_free", "wrapped")),  # no boundary in the batch at all
    Lane("0.23.1", "5.2.0", extras=("pad_to_multiple_of", *_EVAL)),  # position_ids only
    Lane("0.27.2", "5.9.0"),  # bfd splits long documents
    Lane("0.29.1", "5.14.1", _MORE, ("bfd-requeue", "wrapped")),  # the last release with instance attributes
    Lane("1.0.0", "5.15.0", _MORE, ("padding_free",)),  # max_length rule; decorated functions drop boundaries
    Lane("1.4.0", "5.17.0"),  # chunked loss as an option
    Lane("1.9.2", "4.57.6", extras=("pad_to_multiple_of",)),  # chunked loss by default
    Lane("1.14.2", "5.20.0", extras=_EVAL),  # text data on a vision model may pack; fallbacks refuse boundaries
    Lane("1.15.0", "5.24.0"),  # fused head that needs triton; then with triton, interpreted
    Lane("1.15.0", "5.24.0", ("qwen3_5",), beside=(("triton", "3.9.0"),)),
    # Fused head; the batch carries boundaries.
    Lane("1.16.0", "5.24.0", (*_MORE, "minimax"), ("padding_free", "pad_to_multiple_of", "wrapped", *_EVAL)),
)

_GRID = {lane.name: lane for lane in (Lane(trl, transformers) for trl in TRL for transformers in TRANSFORMERS)}
FULL = tuple({**_GRID, **{lane.name: lane for lane in CI}}.values())

SUBSETS = {"full": FULL, "ci": CI}
