"""Finds the model that a user names: a folder, a config file, or a model of the hub."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replacements.packing.checking import memory
from replacements.packing.checking.configs import named_class
from replacements.packing.checking.errors import CannotCheckError
from replacements.packing.texts import one_line

if TYPE_CHECKING:
    from torch import nn

_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"
#: Files that hold weights, or say which do, in the order in which transformers looks for them.
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
#: What files of weights end in.
_OF_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class Source:
    """Where a model is.

    Attributes:
        name: As the user gave it.
        config: Its config.
        weights: What `from_pretrained` is given to load its weights without a download; `None` if there are none.
        files: The files that are read of them.
    """

    name: str
    config: Any
    weights: str | None = None
    files: tuple[Path, ...] = ()

    @property
    def bytes_of_weights(self) -> int:
        """What the loaded weights take: the size of their files, in whose dtype they are loaded."""
        return sum(file.stat().st_size for file in self.files if file.is_file())

    def load(self, trust_remote_code: bool = False) -> nn.Module:
        """The model with its weights, in the dtype they are stored in, on the device that is used here.

        Raises:
            CannotCheckError: They cannot be loaded.
        """
        import transformers

        options = {"dtype": "auto", "local_files_only": True, "device_map": {"": memory.device()}}
        named = named_class(self.config)
        try:
            if named is not None:
                return named.from_pretrained(self.weights, **options).eval()
            return transformers.AutoModelForCausalLM.from_pretrained(
                self.weights, trust_remote_code=trust_remote_code, **options
            ).eval()
        except Exception as error:  # corrupt files, missing shards, other shapes, other code: one line for each
            raise CannotCheckError(
                f"the weights of {self.name} cannot be loaded ({one_line(error, 200)})",
                "--no-weights, or copy the folder again",
            ) from error


def find(reference: str | os.PathLike[str], trust_remote_code: bool = False) -> Source:
    """Finds a model.

    Args:
        reference: A folder with a `config.json`, such a file itself, or a hub id. Of the hub only the config is
            fetched; weights are used where they are in its cache.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        CannotCheckError: There is none, no way to it, or it is no model.
    """
    name = os.fspath(reference)
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(name, path, trust_remote_code)
    if path.is_file():
        if path.suffix in _OF_WEIGHTS:
            raise CannotCheckError(f"{name} holds weights without a config", f"patcher check {path.parent}")
        _read_config(path)
        return Source(name, _config(name, path, trust_remote_code))
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or name.endswith(".json"):
        raise CannotCheckError(f"no such file or folder: {name}", "a model's folder, its config.json, or a hub id")
    return _on_hub(name, trust_remote_code)


def _in_folder(name: str, folder: Path, trust_remote_code: bool) -> Source:
    if not (folder / _CONFIG).is_file():
        if (folder / _ADAPTER).is_file():
            base = _read(folder / _ADAPTER).get("base_model_name_or_path") or "its base model"
            raise CannotCheckError(f"{name} holds an adapter, not a model", f"patcher check {base}")
        raise CannotCheckError(f"{name} is not a model's folder: it has no {_CONFIG}", "the folder that has one")
    _read_config(folder / _CONFIG)
    files = _files(folder)
    return Source(name, _config(name, folder, trust_remote_code), str(folder) if files else None, files)


def _files(folder: Path) -> tuple[Path, ...]:
    """The files of weights that are read of a folder; those that its index names, whether or not they are there."""
    found = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if found is None or found.suffix != ".json":
        return (found,) if found else ()
    index = _read(found).get("weight_map")
    if not isinstance(index, dict):
        raise CannotCheckError(f"{found} is no index of weights: it has no weight_map", "copy it again")
    return tuple(folder / name for name in dict.fromkeys(map(str, index.values())))


def _on_hub(name: str, trust_remote_code: bool) -> Source:
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_download
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        config = Path(hf_hub_download(name, _CONFIG))
    except hub.GatedRepoError as error:
        raise CannotCheckError(f"{name} is gated on the hub", "accept its terms there, then `hf auth login`") from error
    except hub.RepositoryNotFoundError as error:
        remedy = "check the name; `hf auth login` if it is private; a folder needs a path such as ./" + name
        raise CannotCheckError(f"there is no folder and no model on the hub called {name}", remedy) from error
    except hub.EntryNotFoundError as error:
        if not isinstance(error, hub.LocalEntryNotFoundError):
            raise CannotCheckError(f"{name} has no {_CONFIG} on the hub", "a transformers model") from error
        raise _unreachable(name, HF_HUB_OFFLINE) from error
    except (OSError, hub.OfflineModeIsEnabled) as error:
        raise _unreachable(name, HF_HUB_OFFLINE) from error
    _read_config(config)
    files = _files(config.parent)  # of the snapshot in the hub's cache, which may have come in part
    cached = bool(files) and all(file.is_file() for file in files)
    return Source(name, _config(name, name, trust_remote_code), name if cached else None, files if cached else ())


def _unreachable(name: str, offline: bool) -> CannotCheckError:
    if offline:
        return CannotCheckError(
            f"there is no folder {name}, it is not in the hub's cache, and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE, or give a folder or config.json",
        )
    return CannotCheckError(
        f"there is no folder {name}, it is not in the hub's cache, and the hub cannot be reached",
        "a folder or config.json, or again with a network",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CannotCheckError(
            f"{path} is not complete JSON (line {error.lineno}, column {error.colno}: {error.msg})", "copy it again"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CannotCheckError(f"{path} cannot be read ({one_line(error, 200)})", "a model's config.json") from error
    if not isinstance(content, dict):
        raise CannotCheckError(f"{path} is JSON but no model's config", "a model's config.json")
    return content


def _read_config(path: Path) -> dict[str, Any]:
    content = _read(path)
    if "model_type" not in content:
        raise CannotCheckError(f"{path} is no model's config: it has no model_type", "a model's config.json")
    return content


def _config(name: str, where: Any, trust_remote_code: bool) -> Any:
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
    except Exception as error:  # configs validate themselves, each in its own way
        text = one_line(error, 200)
        if "trust_remote_code" in text:
            remedy = "--trust-remote-code, if you trust it"
            raise CannotCheckError(f"{name} comes with code of its own", remedy) from error
        if "does not recognize this architecture" in text or "Unrecognized model" in text:
            raise CannotCheckError(
                f"transformers {transformers.__version__} does not know the model type of {name}",
                "pip install --upgrade transformers",
            ) from error
        raise CannotCheckError(f"the config of {name} is not valid ({text})", "copy it again") from error
