"""Selective scan (Mamba-1) over packed documents."""

from .op import selective_scan

__all__ = ["selective_scan"]
