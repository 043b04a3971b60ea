"""`patcher verify`: on the user's model and data, is a packed document what it is alone?

`documents.py` reads the data, `measure.py` runs it, `report.py` is the answer and `picture.py` draws it.
"""

from replacements.packing.verification.documents import read
from replacements.packing.verification.report import Verification
from replacements.packing.verification.verify import verify

__all__ = ["Verification", "read", "verify"]
