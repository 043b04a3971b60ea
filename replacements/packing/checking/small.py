"""A small random model of the architecture that a config describes, with every kind of layer that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from patcher._log import logger
from replacements.packing.checking import depth, sizes
from replacements.packing.checking.configs import named_class
from replacements.packing.checking.errors import CannotCheckError
from replacements.packing.texts import one_line
from replacements.packing.weights import redraw

Build = Callable[[Any], nn.Module]

#: A model that cannot be cut below this is not built: 4 bytes each, and some seconds to draw.
_MOST_PARAMETERS = 400_000_000


class _NotThisClassError(ValueError):
    """A model class that is not for this config, whatever its sizes."""


@dataclass(frozen=True)
class Small:
    """A small model and what it stands for.

    Attributes:
        model: In eval mode, float32, on the CPU.
        layers: Decoder layers of the architecture, all of them.
        modules: How many modules of each class they hold.
        note: What the user should know of how it was built, or an empty string.
    """

    model: nn.Module
    layers: int
    modules: Counter[str]
    note: str = ""


class _WithHead(nn.Module):
    """A decoder whose config gives it no language-model head, with its token embedding as one."""

    def __init__(self, decoder: nn.Module):
        super().__init__()
        self.decoder = decoder
        self.config = decoder.config

    def get_base_model(self) -> nn.Module:
        """The decoder, as of a PEFT wrapper."""
        return self.decoder

    def get_input_embeddings(self) -> nn.Module:
        """The decoder's."""
        return self.decoder.get_input_embeddings()

    def forward(self, **inputs: Any) -> SimpleNamespace:
        """What the decoder makes of a batch, as `logits` `[B, T, V]`."""
        hidden = self.decoder(**inputs).last_hidden_state
        return SimpleNamespace(logits=hidden @ self.get_input_embeddings().weight.T)


def small_model(config: Any, trust_remote_code: bool = False) -> Small:
    """Builds the smallest model that runs, and sees to it that no kind of layer is lost.

    A model with a vision tower is built whole if that works, else its decoder alone.

    Args:
        config: A transformers config of any size.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        CannotCheckError: No language model can be built from it.
    """
    refused: list[Exception] = []
    for part, build in _ways(config, trust_remote_code):
        for factor in sizes.factors(part.get_text_config().to_dict()):
            try:
                return _built(part, factor, build)
            except _NotThisClassError as error:
                refused.append(error)
                break
            except Exception as error:  # models refuse sizes in their own ways; the next are tried
                logger.debug("No model of 1/%d of the width: %s", factor, error, exc_info=True)
                refused.insert(0, error)
    if all(isinstance(error, _NotThisClassError) for error in refused):
        raise CannotCheckError(f"{type(config).__name__} is not that of a language model", "a causal language model")
    raise CannotCheckError(
        f"no small model could be built from this {type(config).__name__} ({one_line(refused[0], 200)})",
        "a folder with the model's weights, or a causal language model",
    )


def _ways(config: Any, trust_remote_code: bool) -> Iterator[tuple[Any, Build]]:
    """Configs to build from and what builds them: the class the config names first, the decoder without a head last."""
    import transformers

    text = config.get_text_config()
    for part in [config] if text is config else [config, text]:
        named = named_class(part)
        if named is not None:
            yield part, named._from_config
        for auto in ("AutoModelForCausalLM", "AutoModelForImageTextToText"):
            yield part, _from_auto(getattr(transformers, auto), trust_remote_code)
    yield text, _from_auto(transformers.AutoModel, trust_remote_code)


def _from_auto(auto: Any, trust_remote_code: bool) -> Build:
    def build(config: Any) -> nn.Module:
        try:
            return auto.from_config(config, trust_remote_code=trust_remote_code)
        except ValueError as error:
            if "Unrecognized configuration class" in str(error):
                raise _NotThisClassError(str(error)) from error
            raise

    return build


def _built(config: Any, factor: int, build: Build) -> Small:
    """A model of 1/`factor` of the width that has run a row."""
    text_name = _name_of_text(config)
    fields = sizes.cut(config.to_dict(), text_name, factor)
    with torch.device("meta"):
        whole = build(_config(config, fields))
    if not isinstance(whole.get_input_embeddings(), nn.Embedding):
        raise _NotThisClassError(f"{type(whole).__name__} does not read token ids")
    layers = depth.decoder_layers(whole)
    text = fields[text_name] if text_name else fields
    lists = depth.lists_of_layers(text, len(layers))
    of_each = depth.kinds(layers, text, lists)
    refused: Exception | None = None
    for keep in depth.enough(of_each):
        thinned = depth.thin(text, len(layers), keep)
        try:
            model = _run(config, {**fields, text_name: thinned} if text_name else thinned, build)
        except Exception as error:  # some configs tie other fields to their depth; more layers are tried
            refused = error
            continue
        if set(depth.kinds(depth.decoder_layers(model), thinned, lists)) == set(of_each):
            modules = Counter(type(part).__name__ for one in layers for part in one.modules())
            note = f"{type(whole).__name__} has no language-model head; its token embedding stood in for one."
            return Small(model, len(layers), modules, note if isinstance(model, _WithHead) else "")
    raise refused or ValueError("it has other layers when built anew")


def _run(config: Any, fields: dict[str, Any], build: Build) -> nn.Module:
    """A model of these fields that has run a row; an encoder-decoder is never packed, and needs not run."""
    model = redraw(_with_weights(config, fields, build))
    if getattr(model.config, "is_encoder_decoder", False):
        return model
    row = {"input_ids": torch.arange(8)[None], "use_cache": False}
    with torch.no_grad():
        if not hasattr(model(**row), "logits"):
            model = _WithHead(model)
            model(**row)
    return model


def _with_weights(config: Any, fields: dict[str, Any], build: Build) -> nn.Module:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build(_config(config, fields)).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"it has {size / 1e6:.0f} million parameters even when cut")
    return build(_config(config, fields))


def _config(like: Any, fields: dict[str, Any]) -> Any:
    made = type(like).from_dict(dict(fields))
    made.dtype = torch.float32
    return made


def _name_of_text(config: Any) -> str | None:
    """The field that holds the decoder's config; `None` if the config is the decoder's."""
    text = config.get_text_config()
    return None if text is config else next(name for name, value in vars(config).items() if value is text)
