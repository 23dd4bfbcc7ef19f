"""Weights on disk: which files are read and what they hash to, and reading them so that no tensor is left out."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ntl.files import file_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

INDEX = ".index.json"  # ends the name of a file that lists the shards of a checkpoint
PRECEDENCE = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
ADAPTERS = "adapter_config.json"
_SHOWN = 6  # tensors of each kind that an error names


class UnfitWeights(ValueError):
    """Weights that do not fill a model: the text names tensors that are missing, unexpected, or of another shape."""


def read(
    cls: type[PreTrainedModel], source: str | Path, published: type[PreTrainedModel] | None = None, **options: Any
) -> PreTrainedModel:
    """Read a model with `from_pretrained`, and accept only weights that fill it.

    The library draws missing tensors at random and ignores unexpected ones, with a warning. Tied tensors may be absent.

    Args:
        published: the class whose weights `source` holds. Tensors that `cls` adds to it are drawn where they are
            missing, and those that `cls` lacks are ignored.
        options: further arguments of `from_pretrained`.

    Raises:
        UnfitWeights: any other tensor is missing, unexpected or of another shape.
        OSError, ValueError: as `from_pretrained`.
    """
    model, found = cls.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    missing, unexpected = set(found["missing_keys"]), set(found["unexpected_keys"])
    if published is not None and published is not cls:
        known = _names(published, model.config)
        missing = {name for name in missing if _bare(name, published) in known}
        unexpected = {name for name in unexpected if _bare(name, published) not in known}
    shapes = (f"{name} ({list(there)}, expected {list(here)})" for name, there, here in found["mismatched_keys"])
    check(f"a {cls.__name__}", missing, unexpected, shapes)
    return model


def check(model: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[str] = ()) -> None:
    """Raise UnfitWeights where there is any such tensor."""
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": mismatched}
    wrong = [f"{len(names)} {kind}: {_shown(names)}" for kind, given in kinds.items() if (names := sorted(given))]
    if wrong:
        raise UnfitWeights(f"its tensors are not those of {model}; {'; '.join(wrong)}")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _names(cls: type[PreTrainedModel], config: PreTrainedConfig) -> set[str]:
    import torch

    with torch.device("meta"):
        return {_bare(name, cls) for name in cls(copy.deepcopy(config)).state_dict()}


def _bare(name: str, cls: type[PreTrainedModel]) -> str:
    """A tensor's name in a model's body, which the library prefixes where the body has an output layer on it."""
    return name.removeprefix(f"{cls.base_model_prefix}.")


def fingerprint(folder: Path, weights: bool) -> str:
    """Return a hash over the files in a model's folder that are read: names and contents, wherever the folder lies.

    Args:
        weights: whether the weights are read, and not the configuration and the tokenizer alone.

    Raises:
        ValueError: as `files`.
    """
    digest = hashlib.sha256()
    for name in files(folder, weights):
        digest.update(name.encode() + b"\0")
        digest.update(bytes.fromhex(file_sha256(folder / name)))
    return digest.hexdigest()


def files(folder: Path, weights: bool) -> list[str]:
    """Return the names of the files in a model's folder that are read, shards in folders below it among them.

    Raises:
        ValueError: the weights are, in part, outside the folder or not there, or they are adapters.
    """
    names = {path.name for path in folder.iterdir() if path.suffix in (".json", ".model", ".txt") and path.is_file()}
    if weights:
        if ADAPTERS in names:
            raise ValueError(
                f"got {ADAPTERS} in it, expected whole weights; merge the adapters into them (merge_and_unload) and "
                "save that"
            )
        names |= set(_weights(folder))
    return sorted(names)


def _weights(folder: Path) -> Iterator[str]:
    """The weights that `from_pretrained` reads, by its order of precedence."""
    named = _json(folder / "config.json").get("transformers_weights")
    found = [named] if named else [name for name in PRECEDENCE if (folder / name).is_file()][:1]
    for name in found:
        yield _inside(folder, name, "config.json")
        if name.endswith(INDEX):
            shards = _json(folder / name).get("weight_map")
            if not isinstance(shards, dict):
                raise ValueError(f"{name} has no weight_map, which names the file of each tensor")
            for shard in sorted({*map(str, shards.values())}):
                yield _inside(folder, shard, name)


def _inside(folder: Path, name: str, where: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError(f"{where} names {name!r}, which is outside the model's folder; move the file into it")
    if not (folder / name).is_file():
        raise ValueError(f"{where} names {name!r}, and there is no such file")
    return PurePath(name).as_posix()


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} does not hold an object")
    return content
