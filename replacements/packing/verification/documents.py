"""Reads documents from what users keep them in: text, JSON lines, folders of `datasets`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from replacements.packing.checking.errors import CannotCheckError
from replacements.packing.texts import one_line

#: Columns that hold a document, the most ready first.
_COLUMNS = ("input_ids", "messages", "text")


def read(path: str | Path, tokenizer: Any, limit: int | None = None) -> list[list[int]]:
    """The first documents of a file or folder, as token ids.

    Args:
        path: A text file whose documents are separated by blank lines; a `.jsonl` file whose lines hold `text`,
            `messages` or `input_ids`; or a folder that `datasets` saved.
        tokenizer: For `text` and `messages`; `None` will do for `input_ids`.
        limit: Most documents to read.

    Raises:
        CannotCheckError: There is no such file, or no documents are in it.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        found = _from_dataset(path)
    elif not path.is_file():
        raise CannotCheckError(f"no such file or folder: {path}", "a text file, a .jsonl file, or a folder of datasets")
    elif path.suffix in (".jsonl", ".json"):
        found = _from_json_lines(path)
    else:
        found = _from_text(path)
    documents = [encode(one, tokenizer) for one in islice(found, limit)]
    if not documents:
        raise CannotCheckError(f"there are no documents in {path}", "a file with some")
    return documents


def encode(document: Any, tokenizer: Any) -> list[int]:
    """A document as token ids.

    Args:
        document: Text, token ids, or a mapping with one of `input_ids`, `messages`, `text`.
        tokenizer: A tokenizer of transformers, or `None`.

    Raises:
        CannotCheckError: It is none of these, or text without a tokenizer.
    """
    if isinstance(document, Mapping):
        name = next((name for name in _COLUMNS if document.get(name) is not None), None)
        if name is None:
            has = ", ".join(document) or "nothing"
            raise CannotCheckError(f"a document has none of {', '.join(_COLUMNS)}, but {has}", "one of these columns")
        document = document[name]
    if isinstance(document, str):
        return list(_needed(tokenizer)(document)["input_ids"])
    if isinstance(document, list) and document and isinstance(document[0], Mapping):
        return _conversation(document, _needed(tokenizer))
    return [int(token) for token in document]


def _conversation(messages: list[Any], tokenizer: Any) -> list[int]:
    if getattr(tokenizer, "chat_template", None):
        made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        return list(made["input_ids"])
    return list(tokenizer("\n".join(str(message.get("content", "")) for message in messages))["input_ids"])


def _needed(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise CannotCheckError("the documents are text, and there is no tokenizer", "--tokenizer FOLDER, or input_ids")
    return tokenizer


def _from_text(path: Path) -> Iterator[str]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotCheckError(f"{path} cannot be read ({one_line(error, 200)})", "a UTF-8 text file") from error
    return (part.strip() for part in re.split(r"\n\s*\n", content) if part.strip())


def _from_json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise CannotCheckError(
                    f"line {number} of {path} is not JSON ({error.msg})", "one JSON object on each line"
                ) from error


def _from_dataset(path: Path) -> Iterable[Any]:
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(path))
    except Exception as error:  # folders of other kinds fail in their own ways
        raise CannotCheckError(
            f"{path} is not a folder that datasets saved ({one_line(error, 200)})", "Dataset.save_to_disk"
        ) from error
    if isinstance(dataset, DatasetDict):
        dataset = dataset["train"] if "train" in dataset else next(iter(dataset.values()))
    return dataset
