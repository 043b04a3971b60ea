"""Kimi delta attention: a delta rule whose state decays by one number per token, head and key channel."""

from .op import kimi_delta_attention

__all__ = ["kimi_delta_attention"]
