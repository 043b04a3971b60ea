"""The definition, one token and one document at a time: slow, for tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..segments import Segments


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    segments: Segments,
    activation: str | None = None,
) -> torch.Tensor:
    """Convolve every document alone. Arguments and result as the fast form's."""
    batch, channels, length = x.shape
    row = x.permute(1, 0, 2).reshape(channels, batch * length)
    outputs = []
    for document in row.split(segments.lengths.tolist(), dim=1):
        for t in range(document.shape[1]):
            seen = document[:, max(0, t + 1 - weight.shape[1]) : t + 1]
            value = (seen * weight[:, weight.shape[1] - seen.shape[1] :]).sum(1)
            outputs.append(value if bias is None else value + bias)
    out = torch.stack(outputs, 1).reshape(channels, batch, length).permute(1, 0, 2)
    return F.silu(out) if activation else out
