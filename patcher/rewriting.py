"""What a rewrite is written with: anchors, edits and the rewrite itself; and a way to try it on a text.

Light, so that a module with a rewrite costs little to import: the text machinery is loaded when it is first asked for.
"""

from __future__ import annotations

from patcher._anchors import Anchor
from patcher._errors import AnchorError, PatchError
from patcher._rewrite import ALREADY, MISSED, Edit, Rewrite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from patcher._edits import Edited, edit_source

__all__ = ["ALREADY", "MISSED", "Anchor", "AnchorError", "Edit", "Edited", "PatchError", "Rewrite", "edit_source"]


def __getattr__(name: str) -> object:
    if name in ("Edited", "edit_source"):
        from patcher import _edits

        return getattr(_edits, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
