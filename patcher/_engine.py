"""Puts rewrites in place, all or none, and takes them back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType

from patcher import _ledger, _places, _recompile, _references, _shown, _source
from patcher._edits import Edited, edit_source
from patcher._errors import PatchError, RewriteError
from patcher._ledger import Record
from patcher._log import logger, say_once
from patcher._namespace import Namespace
from patcher._rewrite import ALREADY, MISSED, Rewrite
from patcher._version import package_version


@dataclass(frozen=True)
class _Plan:
    """A rewrite that is matched and compiled, and not yet put in place."""

    rewrite: Rewrite
    version: str | None
    edited: Edited
    shown: str
    original: FunctionType
    made: FunctionType
    swaps: list[_places.Swap]
    outside: list[str]


def apply(rewrites: Iterable[Rewrite]) -> list[Record]:
    """Puts rewrites in place. Their modules must be imported. Asking again for what stands changes nothing.

    Args:
        rewrites: the rewrites; those that are required are one transaction.

    Returns:
        The record of each rewrite.

    Raises:
        PatchError: a required rewrite cannot be made. The process is as it was.
    """
    rewrites = list(rewrites)
    targets: dict[str, Rewrite] = {}
    for rewrite in rewrites:
        if targets.setdefault(rewrite.target, rewrite).name != rewrite.name:
            raise _conflict(rewrite, targets[rewrite.target].name)
    with _ledger.lock:
        plans = [plan for rewrite in rewrites if (plan := _prepare(rewrite)) is not None]
        _commit(plans)
        return [record for rewrite in rewrites if (record := _ledger.get(rewrite.name)) is not None]


def revert(names: Iterable[str] | None = None) -> list[Record]:
    """Takes rewrites back: every place holds again the object it held before.

    In a wrapper that was put over a function, and that shows what it wraps, it is the wrapped function that is put
    back. A place that holds anything else by now is left alone, and its record says so.

    Args:
        names: names of the rewrites, or None for all.
    """
    wanted = None if names is None else set(names)
    with _ledger.lock:
        done = []
        for record in reversed(_ledger.records()):
            if not record.active or (wanted is not None and record.rewrite.name not in wanted):
                continue
            _take_back(record)
            done.append(record)
        return done


def step_aside(owner: str) -> None:
    """Takes back what is to be left alone while a module is loaded; the ledger then says that it is left alone.

    Args:
        owner: name of the module, as in ``Rewrite.unless``.
    """
    with _ledger.lock:
        theirs = [record.rewrite for record in _ledger.records() if record.active and owner in record.rewrite.unless]
        revert(rewrite.name for rewrite in theirs)
        apply(theirs)


def _take_back(record: Record) -> None:
    elsewhere = _elsewhere(record)
    left = [swap for swap in reversed(record.swaps) if not swap.undo()]
    for swap in elsewhere:
        swap.do()
    if elsewhere:  # a wrapper that was put over the function has the original again
        left = [swap for swap in left if swap.place.get() is not _bound(record.rewrite)]
    if record.swaps and not left:
        record.state, record.reason = _ledger.REVERTED, ""
        _shown.forget(_shown.filename(record.rewrite.target))
        return
    record.state = _ledger.STUCK
    record.reason = "something else was put on top of it" if record.swaps else "another copy of the engine made it"
    say_once(
        f"stuck {record.rewrite.name}",
        f"{record.rewrite.target} cannot be taken back: {record.reason}. Restart Python to be rid of it",
    )


def _elsewhere(record: Record) -> list[_places.Swap]:
    """Swaps to the original in places that took the function since: a later import, a wrapper that is put over it."""
    if record.original is None or record.rewrite.module not in sys.modules:
        return []
    try:
        function, swaps, _ = _references.find(record.rewrite)
    except PatchError:
        return []
    if function is not record.made:
        return []
    known = [swap.place for swap in record.swaps]
    return [swap for swap in swaps(record.original) if swap.place not in known]


def _prepare(rewrite: Rewrite) -> _Plan | None:
    """A plan for a rewrite, or None when there is nothing to do; the ledger then says why."""
    owners = [name for name in rewrite.unless if name in sys.modules]
    if owners and not _stands(rewrite):
        _ledger.put(Record(rewrite, _ledger.LEFT_ALONE, reason=f"{', '.join(owners)} is loaded and owns this function"))
        return None
    version = package_version(rewrite.package)
    try:
        return _plan(rewrite, version)
    except PatchError as error:
        error.locate(rewrite.target, rewrite.package, version)
        state = _ledger.FAILED if rewrite.required else _ledger.SKIPPED
        _ledger.put(Record(rewrite, state, version, reason=str(error)))
        if rewrite.required:
            raise
        lost = f" Lost: {rewrite.lost}." if rewrite.lost else ""
        say_once(f"skipped {rewrite.name}", f"optional rewrite {rewrite.name!r} is left out.{lost}\n{error}")
        return None


def _plan(rewrite: Rewrite, version: str | None) -> _Plan | None:
    if rewrite.module not in sys.modules:
        raise PatchError(f"{rewrite.module} is not imported", remedy=f"Import {rewrite.module} first")
    if _stands(rewrite):
        return None
    try:
        function, swaps, outside = _references.find(rewrite)
    except PatchError:
        if _covered(rewrite, None):
            return None
        raise
    if _covered(rewrite, function):
        return None
    if _recompile.is_rewritten(function):
        _adopt(rewrite, version, _recompile.rewritten_by(function))
        return None
    source = _source.of(function, rewrite.target)
    edited = edit_source(source.text, rewrite, version=version, line=source.line, name=source.name)
    namespace = Namespace(rewrite.name, rewrite.calls)
    new = _recompile.recompile(function, edited.text, edited.line, rewrite.target, namespace)
    shown = source.text if rewrite.shows_upstream else edited.text
    return _Plan(rewrite, version, edited, shown, function, new, swaps(new), outside)


def _adopt(rewrite: Rewrite, version: str | None, maker: str | None) -> None:
    """Enters a function that is rewritten already: one that could not be taken back, or another engine's work.

    Raises:
        RewriteError: it is the work of another rewrite.
    """
    if maker != rewrite.name:
        raise _conflict(rewrite, str(maker))
    record = _ledger.get(rewrite.name)
    if record is not None and record.swaps:
        record.state, record.reason = _ledger.APPLIED, rewrite.note
        return
    edits = [(edit.name, ALREADY) for edit in rewrite.edits]
    _ledger.put(Record(rewrite, _ledger.APPLIED, version, edits, reason="rewritten by another copy of the engine"))


def _conflict(rewrite: Rewrite, other: str) -> RewriteError:
    return RewriteError(
        f"rewrites {other!r} and {rewrite.name!r} both change {rewrite.target}",
        remedy="Put their edits into one rewrite",
    )


def _stands(rewrite: Rewrite) -> bool:
    """Whether an earlier call put the rewrite in place and it is still there, in the class that is bound now."""
    record = _ledger.get(rewrite.name)
    if record is None or not record.active or not all(swap.holds for swap in record.swaps):
        return False
    return not record.swaps or _bound(rewrite) is record.swaps[0].new


def _bound(rewrite: Rewrite) -> object:
    """What the target's qualified name leads to now."""
    owner: object = sys.modules.get(rewrite.module)
    *outer, name = rewrite.qualname.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    return vars(owner).get(name) if hasattr(owner, "__dict__") else None


def _covered(rewrite: Rewrite, function: FunctionType | None) -> bool:
    """Whether our function is in place under something that another library put on top.

    The same function from the same file, unpatched, is a reloaded module instead.
    """
    record = _ledger.get(rewrite.name)
    if record is None or not record.active or record.original is None:
        return False
    if function is None or _recompile.is_rewritten(function):
        return True
    before, now = record.original.__code__, function.__code__
    return (before.co_filename, before.co_name) != (now.co_filename, now.co_name)


def _commit(plans: list[_Plan]) -> None:
    done: list[_places.Swap] = []
    try:
        for plan in plans:
            _shown.register(_shown.filename(plan.rewrite.target), plan.shown)
            for swap in plan.swaps:
                swap.do()
                done.append(swap)
    except BaseException:
        for swap in reversed(done):
            swap.undo()
        for plan in plans:
            _shown.forget(_shown.filename(plan.rewrite.target))
        raise
    for plan in plans:
        _enter(plan)


def _enter(plan: _Plan) -> None:
    """Writes a plan that is in place into the ledger, and says what optional edits are lost."""
    rewrite = plan.rewrite
    record = Record(rewrite, _ledger.APPLIED, plan.version, plan.edited.matched, plan.swaps, plan.original, plan.made)
    record.outside, record.reason = plan.outside, rewrite.note
    _ledger.put(record)
    missed = {name for name, outcome in plan.edited.matched if outcome == MISSED}
    for edit in rewrite.edits:
        if edit.name in missed:
            lost = f" Lost: {edit.lost}." if edit.lost else ""
            what = f"{rewrite.package} {plan.version or ''}: optional edit {edit.name!r} of {rewrite.target}"
            say_once(f"missed {rewrite.name} {edit.name}", f"{what} found no place.{lost}")
    if plan.outside:
        say_once(
            f"outside {rewrite.name}",
            f"{', '.join(plan.outside)} took {rewrite.target} before it was rewritten and keep the original",
        )
    logger.debug("rewrote %s: %s", rewrite.target, plan.edited.matched)
