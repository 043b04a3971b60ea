"""Depthwise causal convolution that never reaches over the start of a document."""

from .op import causal_conv1d

__all__ = ["causal_conv1d"]
