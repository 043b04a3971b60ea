"""State-space duality (Mamba-2) over packed documents."""

from .op import ssd

__all__ = ["ssd"]
