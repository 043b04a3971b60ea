"""The recurrence, one token and one document at a time: slow, for tests."""

from ..gated_delta_rule.naive import gated_delta_rule as kimi_delta_attention

__all__ = ["kimi_delta_attention"]
