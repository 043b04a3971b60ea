"""What a config says of the class that it was saved with."""

from __future__ import annotations

from typing import Any


def named_class(config: Any) -> type | None:
    """The class of transformers that a config names; `None` if it names none, or one of the model's own code."""
    import transformers

    names = getattr(config, "architectures", None) or []
    found = getattr(transformers, names[0], None) if names and isinstance(names[0], str) else None
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None
