"""``patcher demo``: a small hybrid model trained on real text, packed and padded, and what packing does to it."""
