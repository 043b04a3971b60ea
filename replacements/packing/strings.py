"""Models given by name: what can be said of them before their weights are read.

The config is resolved as TRL and transformers will resolve it, and a model without weights is built from it. That says
early, before a long download, that a trainer will not pack. What cannot be resolved or built is unknown, and is decided
on the real model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from patcher._log import logger
from replacements.packing.guard import announce, asks, judge
from replacements.packing.measuring import same_random_state
from replacements.packing.rules import EARLY_RULES
from replacements.packing.situation import Situation
from replacements.packing.verdict import Reason

if TYPE_CHECKING:
    from torch import nn

#: What decides where a config comes from; the rest of `model_init_kwargs` is for the weights.
_WHERE = ("revision", "subfolder", "token", "cache_dir", "code_revision", "local_files_only", "proxies")


def foresee(model: Any, args: Any, **situation: Any) -> None:
    """Called by the rewritten `SFTTrainer.__init__` before it builds a model from its name.

    Says what is known against packing; changes nothing. Whatever goes wrong here is left to TRL.

    Args:
        model: The `model` argument of the trainer; only a name is looked at.
        args: Its `SFTConfig`.
        situation: The further arguments that the guard decides from.

    Raises:
        PackingRefusedError: The verdict is to refuse, or to pad and `PATCHER_ON_UNSAFE=raise`.
    """
    if not isinstance(model, str) or not asks(Situation(model, args, **situation)):
        return
    weightless = imagine(model, args)
    if weightless is None:
        return
    verdict = judge(Situation(weightless, args, **situation), EARLY_RULES)
    if verdict.action in ("pad", "refuse") and verdict.reason is not Reason.UNREADABLE:
        announce(verdict)


def imagine(name: str, args: Any) -> nn.Module | None:
    """The model of that name without weights, or `None` if that cannot be had."""
    try:
        with same_random_state(devices=()):
            options = init_kwargs(args)
            config = resolve(name, options)
            return build(config, bool(options.get("trust_remote_code")))
    except Exception as error:  # no access, no network, a broken file, foreign code: TRL's to report, if it meets it
        logger.debug("What %r is was not known before its weights were read: %s", name, error, exc_info=True)
        return None


def init_kwargs(args: Any) -> dict[str, Any]:
    """`model_init_kwargs` with the defaults that this TRL gives them."""
    options = dict(args.model_init_kwargs or {})
    if hasattr(args, "trust_remote_code"):
        options.setdefault("trust_remote_code", args.trust_remote_code)
    return options


def resolve(name: str, options: Mapping[str, Any]) -> Any:
    """The config of a model by its name, as `from_pretrained(name, **options)` finds it.

    Args:
        name: A folder or a hub id.
        options: `model_init_kwargs`.

    Raises:
        OSError: There is no such config, or no way to it.
        ValueError: The config is not one, or needs code that is not trusted.
    """
    from transformers import AutoConfig

    given = options.get("config")
    if given is not None and not isinstance(given, str):
        return given
    if options.get("gguf_file"):
        raise ValueError("the config of a GGUF file is in the file itself, beside the weights")
    where = {key: options[key] for key in _WHERE if options.get(key) is not None}
    if options.get("use_auth_token") is not None:
        where.setdefault("token", options["use_auth_token"])
    # An explicit False: left open, transformers asks at the terminal whether code is to be trusted.
    trusted = bool(options.get("trust_remote_code", False))
    return AutoConfig.from_pretrained(given or name, trust_remote_code=trusted, **where)


def build(config: Any, trust_remote_code: bool = False) -> nn.Module:
    """A model of this config whose weights are on the meta device.

    Raises:
        ValueError: Its code is not trusted.
    """
    import transformers

    named = getattr(transformers, (config.architectures or [""])[0], None)
    with torch.device("meta"):
        if named is not None:
            return named._from_config(config)
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
