"""What the gated delta rule and Kimi delta attention share: a delta rule over chunks, with a decay of either kind."""

from .channel_decay import ChannelDecay
from .op import delta_rule
from .scalar_decay import ScalarDecay

__all__ = ["ChannelDecay", "ScalarDecay", "delta_rule"]
