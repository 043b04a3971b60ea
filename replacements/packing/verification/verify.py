"""`patcher.verify`: packed against alone, on the user's own model and data."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from patcher._log import logger
from replacements.packing.checking import judged, memory, rows, source
from replacements.packing.checking.errors import CannotCheckError
from replacements.packing.measuring import coarsest_epsilon, undisturbed
from replacements.packing.probe import why_not
from replacements.packing.situation import unwrapped
from replacements.packing.texts import one_line
from replacements.packing.verification.documents import encode
from replacements.packing.verification.measure import Difference, Runner
from replacements.packing.verification.report import Document, Verification

#: What a model takes beside its weights, as a factor: the activations of a row.
_ROOM = 1.2
#: So many sets of gradients, each the size of the weights, are held at a time: alone, and two that it is compared with.
_GRADIENTS = 3
#: Tokens of the document that stands behind one whose rounding is looked at.
_BEHIND = 9


def verify(
    model: nn.Module | str | os.PathLike[str],
    documents: Iterable[Any],
    *,
    tokenizer: Any = None,
    max_length: int = 1024,
    gradients: bool = True,
    trust_remote_code: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Packs documents and compares each with itself alone: log-probabilities, loss and gradients.

    How far a document may be from itself alone is read off the model: the same document in other batch shapes. Each
    document costs some forwards and backwards of its row; a few dozen say enough.

    Args:
        model: A causal language model; or a folder or hub id with weights.
        documents: Token ids, texts, or mappings with `input_ids`, `messages` or `text`.
        tokenizer: For texts and messages.
        max_length: Tokens of a row; longer documents are cut.
        gradients: Whether gradients are compared: of the parameters that require them.
        trust_remote_code: Whether code that comes with the model may run.
        progress: Called after each document with how many are done, and of how many.

    Raises:
        CannotCheckError: There is no such model, or no two documents share a row.
    """
    with rows.quiet():
        if not isinstance(model, nn.Module):
            name, model = os.fspath(model), _load(model, trust_remote_code, gradients)
        else:
            name = type(unwrapped(model)).__name__
        reason = why_not(model)
        if reason:
            raise CannotCheckError(
                f"{name} cannot be run by itself: {reason}", "the model as it is saved, on one device"
            )
        packed = _packed(list(documents), tokenizer, max_length)
        return _verified(name, model, packed, gradients, progress or (lambda done, of: None))


def _packed(documents: list[Any], tokenizer: Any, max_length: int) -> list[list[Sequence[int]]]:
    """Rows of the documents as token ids, those that have any; in some row there are two.

    Raises:
        CannotCheckError: No two documents share a row.
    """
    encoded = [encode(document, tokenizer)[:max_length] for document in documents]
    encoded = [document for document in encoded if document]
    if not encoded and documents and tokenizer is not None:
        raise CannotCheckError("the tokenizer makes no token of any document", "the model's own: --tokenizer FOLDER")
    if len(encoded) < 2:
        raise CannotCheckError(
            f"{len(encoded) or 'no'} document{'s' * (not encoded)} to verify with, and nothing to pack it with",
            "a few dozen of your own",
        )
    packed = _rows(encoded, max_length)
    if all(len(row) == 1 for row in packed):
        shared = min(len(a) + len(b) for a, b in pairwise(encoded))
        raise CannotCheckError(f"no two documents fit in a row of {max_length}", f"--max-length {shared} or more")
    return packed


def _load(reference: str | os.PathLike[str], trust_remote_code: bool, gradients: bool) -> nn.Module:
    found = source.find(reference, trust_remote_code)
    if found.weights is None:
        raise CannotCheckError(
            f"{found.name} has no weights on this machine", f"patcher check {found.name}, which needs none"
        )
    forwards = _ROOM * found.bytes_of_weights
    needed, free = forwards + (_GRADIENTS * found.bytes_of_weights if gradients else 0), memory.free()
    if needed > free:
        raise CannotCheckError(
            f"verifying {found.name} {'with gradients ' if gradients else ''}needs {memory.in_words(needed)}, and "
            f"{memory.in_words(free)} are free on {memory.device()}",
            "--no-gradients" if gradients and forwards <= free else f"patcher check {found.name} --no-weights",
        )
    return found.load(trust_remote_code)


def _rows(documents: Sequence[Sequence[int]], max_length: int) -> list[list[Sequence[int]]]:
    """The documents in order, as many in each row as fit."""
    packed: list[list[Sequence[int]]] = [[]]
    for document in documents:
        if packed[-1] and sum(map(len, packed[-1])) + len(document) > max_length:
            packed.append([])
        packed[-1].append(document)
    return packed


def _verified(
    name: str,
    model: nn.Module,
    packed: list[list[Sequence[int]]],
    gradients: bool,
    progress: Callable[[int, int], None],
) -> Verification:
    verdict = judged(model)
    errors: list[str] = []
    found: list[Document] = []
    total = sum(map(len, packed))
    with undisturbed(model):
        runner = Runner(model, gradients)
        for number, row in enumerate(packed):
            for place in range(len(row)):
                found.append(_document(runner, row, (number, place), verdict.action == "pack", errors))
                progress(len(found), total)
    notes = []
    if gradients and not runner.trained:
        notes.append("No parameter requires gradients, so none were compared.")
    return Verification(name, verdict, tuple(found), coarsest_epsilon(model), "".join(errors[:1]), tuple(notes))


def _document(
    runner: Runner, row: list[Sequence[int]], where: tuple[int, int], packs: bool, errors: list[str]
) -> Document:
    document, place = row[where[1]], where[1]
    stock = patched = None
    with rows.stock(runner.model):
        alone = runner.alone(document)
        shapes = [Difference.between(other, alone) for other in runner.elsewhere(document)]
        if not errors:
            try:
                stock = Difference.between(runner.packed(row, place, seq_idx=False), alone)
            except Exception as error:  # releases refuse packed rows in their own ways; said once
                logger.debug("The stock model could not run a packed row.", exc_info=True)
                errors.append(one_line(error, 200))
    if packs:
        with rows.patched(runner.model):
            patched = Difference.between(runner.packed(row, place, seq_idx=True), alone)
            # The first document of a row has nothing in front of it: what moves it is the rounding of the ops.
            first = runner.packed([document, document[:_BEHIND]], 0, seq_idx=True)
            shapes.append(Difference.between(first, alone))
    scale = float(alone.log_probs.abs().mean())
    return Document(
        *where, len(document), alone.loss, scale, functools.reduce(Difference.larger, shapes), stock, patched
    )
