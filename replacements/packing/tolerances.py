"""How far apart the same may be: what is rounding, in whatever way documents are packed and compared.

Differences are the largest of a log-probability over tokens and vocabulary, in nats, unless something else is said.
"""

from __future__ import annotations

#: Rows of one shape, which run the same kernels: they agree to the last bits of a float32.
SAME_SHAPE = 2e-6
#: A packed row and the documents alone, which run other kernels, in any dtype.
LOG_PROB = 1e-4
#: The same of a document's mean loss.
LOSS = 1e-5
#: The same of a document's gradient: norm of the difference, relative to the norm.
GRADIENT = 1e-3
#: What is this many times the rounding that was measured is no longer rounding.
FACTOR = 4.0
