"""What makes a run the run it is: a name that changes when, and only when, the result can change."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from ntl import options
from ntl.runs.scrubbing import scrub
from ntl.settings import unused

# Raise it whenever the code changes what a run computes, or a default that recorded runs relied on.
# 2: numbers in text, regression head, xVal, vocabularies and trained tokenizers; weights are checked and hashed whole.
ALGORITHM_VERSION = 2
# Raise it when the canonical form itself changes: every run is then renamed.
CANONICAL_VERSION = 2
# Top-level choices that cannot change a result.
NOT_RESULT = frozenset(
    {"logger", "paths", "hydra", "arm", "arms", "seeds", "arm_seeds", "planned_only", "experiment", "retry", "force"}
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a run's configuration can change its result, in a form that is equal for equal runs.

    In each node that names a `_target_`, options at their default are left out, so that a new option does not rename
    old runs, as are options declared with `identity=False`. The class is named without its module, so that moving code
    renames no run. `name` keys are labels and left out. Other keys beside `_target_`, such as `loss.encoding`, stay.

    Args:
        config: resolved configuration with the top-level keys model, dataset, loss, train, eval, seed.

    Raises:
        ValueError: a `_target_` that cannot be imported, or a number that is not finite.
        TypeError: a value that JSON cannot hold.
    """
    nodes = {key: _canonical_node(value, key) for key, value in _of_result(config).items()}
    return {"version": CANONICAL_VERSION, "algorithm_version": ALGORITHM_VERSION, "config": nodes}


def key(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configurations that compute the same; unlike an id, whatever their data, weights
    and algorithm version. Raises as `canonical` does."""
    return hashlib.sha256(_dump(canonical(config)["config"]).encode()).hexdigest()


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration as a record shows it: whole, but without what cannot change a result.

    Names and defaults stay, so that a record tells what was used even when a default changes later. Absolute paths
    are cut. `canonical(public(config)) == canonical(config)`, unless an option of the identity is a path.
    """
    return scrub({key: _public_node(value, key) for key, value in _of_result(config).items()})


def _of_result(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nodes of a configuration that can change a result, without options of the model that are not used."""
    nodes = {key: value for key, value in config.items() if key not in NOT_RESULT}
    if isinstance(model := nodes.get("model"), Mapping):
        nodes["model"] = {key: value for key, value in model.items() if key not in unused(model)}
    return nodes


def run_id(config: Mapping[str, Any], data_fingerprint: str, weights_fingerprint: str | None = None) -> str:
    """Return a run's readable identity: `<dataset>-<model>-<loss>-s<seed>-<8 hexadecimal digits>`.

    Args:
        config: resolved configuration; `dataset.name`, `model.name`, `loss.name` and `seed` form the readable part.
        data_fingerprint: hash over the content of the prepared data.
        weights_fingerprint: hash over the weights that training starts from; None when they are drawn from the seed.

    Raises:
        ValueError: a name that is missing or cannot be a folder's name, or a seed that is no integer.
    """
    dataset, model, loss = (checked_name(config, part) for part in ("dataset", "model", "loss"))
    seed = config.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}; expected an integer of at least 0. Give one, as in seed=0.")
    content = {"run": canonical(config), "data": data_fingerprint, "weights": weights_fingerprint}
    digest = hashlib.sha256(_dump(content).encode()).hexdigest()
    return f"{dataset}-{model}-{loss}-s{seed}-{digest[:8]}"


def checked_name(config: Mapping[str, Any], part: str) -> str:
    """Return `config[part]["name"]` if it can be part of a file name on any system, else raise ValueError."""
    name = (config.get(part) or {}).get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{part}.name is {name!r}; expected letters, digits, '_' and '.', starting with a letter or digit, "
            f"because it becomes part of a folder's name. Rename it in conf/{part}/."
        )
    return name


@functools.cache
def _defaults(target: str) -> dict[str, str | None]:
    """Return the default of each option of a class as canonical JSON; None for one without, or that JSON cannot hold"""
    return {name: _default_json(option.default) for name, option in options.declared_by(target).items()}


def _default_json(value: Any) -> str | None:
    try:
        return _dump(_canonical_node(value, "the.default"))
    except (TypeError, ValueError):
        return None


def _canonical_node(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        declared = options.declared_by(value["_target_"]) if "_target_" in value else {}
        defaults = _defaults(value["_target_"]) if "_target_" in value else {}
        is_group = "_target_" in value or "." not in where
        node = {}
        for key, item in value.items():
            option = declared.get(key)
            if (key == "name" and is_group) or (option and not option.identity):
                continue
            if key == "_target_":  # the class, wherever it lives: moving code renames no run
                node["class"] = str(item).rpartition(".")[2]
                continue
            item = _canonical_node(item, f"{where}.{key}")
            if option is None or _dump(item) != defaults[key]:
                node[str(key)] = item
        return node
    if isinstance(value, Enum):
        return _canonical_node(value.value, where)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}; expected a finite number. Give one, as in {where}=0.3.")
        # 1 and 1.0 are the same option, whichever way a person writes it.
        return int(value) if float(value).is_integer() else float(value)
    if isinstance(value, Set):
        return sorted((_canonical_node(item, where) for item in value), key=_dump)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_canonical_node(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is of type {type(value).__name__}; expected a value that JSON can hold.")


def _public_node(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        declared = options.declared_by(value["_target_"]) if "_target_" in value else {}
        return {
            str(key): _public_node(item, f"{where}.{key}")
            for key, item in value.items()
            if key not in declared or declared[key].identity
        }
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [_public_node(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    return _canonical_node(value, where)


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
