"""The gated delta rule (Gated DeltaNet): a delta rule whose state decays by one number per token and head."""

from .op import gated_delta_rule

__all__ = ["gated_delta_rule"]
