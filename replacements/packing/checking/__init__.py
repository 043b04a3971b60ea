"""`patcher check`: is this model safe to pack here, on this TRL, this transformers and these kernels?

`source.py` finds the model a user names, `small.py` builds a small one of the same architecture where there are no
weights (`sizes.py`, `depth.py`), `rows.py` and `kinds.py` run it, `speed.py` looks at the kernels, and
`report.py` is the answer.
"""

from replacements.packing.checking.check import check, judged
from replacements.packing.checking.errors import CannotCheckError
from replacements.packing.checking.report import Report

__all__ = ["CannotCheckError", "Report", "check", "judged"]
