"""The objects that a configuration names, checked whole before any work starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hydra.utils import get_class

from experiments.config.compose import ConfigurationError, compose
from ntl import options
from ntl.text import did_you_mean

if TYPE_CHECKING:
    from data_prep.base import Dataset
    from ntl.encodings import Encoding, TokenizerSource
    from ntl.losses.objectives import Objective
    from ntl.runs.execute import Parts


def instantiate_whole(config: Mapping[str, Any]) -> Parts:
    """Make the parts of a run, and check what has to be read from the hub for that.

    Raises:
        ConfigurationError: as `instantiate` does.
        NotAvailable: a model that is neither on the hub nor in the local cache.
    """
    from ntl import models

    parts = instantiate(config)
    models.find(parts.model)
    return parts


def instantiate(config: Mapping[str, Any]) -> Parts:
    """Make the parts of a run from its configuration (as `configuration.compose` gives it).

    Raises:
        ConfigurationError: whatever in it cannot be run; says what was got, what was expected and what to do.
    """
    from ntl import models
    from ntl.evaluation import answer as evaluation
    from ntl.models.linear_head import check_request
    from ntl.runs.execute import Parts
    from ntl.training import train as training

    try:
        _check_own(config)
        parts = Parts(
            model=_make(config, "model"),
            dataset=_make(config, "dataset"),
            objective=_make(config, "loss", drop=("encoding", "encoding_options"), partially=True),
            encoding=_encoding(config),
            train=_make(config, "train"),
            eval=_make(config, "eval"),
            tracker=_make(config, "logger"),
        )
        models.check(parts.model, parts.encoding.func)
        training.check(parts.train)
        evaluation.check(parts.eval)
        if parts.eval.beams > 1 and not parts.encoding.func.searches:
            raise ConfigurationError(
                f"eval.beams: got {parts.eval.beams}, expected 1 with loss={config['loss']['name']}: the encoding "
                f"'{config['loss']['encoding']}' answers greedily"
            )
        _check_dataset(parts.dataset)
        check_request(parts.train.loss_implementation, _sample_objective(parts))
        check_encoding(
            config["loss"], family=parts.model.family, answers=answers_of(parts.dataset), decode=parts.eval.decode
        )
    except (ValueError, TypeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(str(error)) from error
    return parts


def _sample_objective(parts: Parts) -> Objective:
    """Make the loss, which checks its own options; any vocabulary serves for that."""
    import torch

    from ntl.numbers import NumberVocabulary

    return parts.objective(numbers=NumberVocabulary(torch.arange(10), torch.arange(10, dtype=torch.float64), 10))


def _check_dataset(dataset: Dataset) -> None:
    """Check a dataset's options; what is said of one names it as it is given to run.py."""
    try:
        dataset.check()
    except ValueError as error:
        named = str(error).partition(":")[0] in vars(dataset)
        raise ConfigurationError(f"dataset.{error}" if named else str(error)) from error


def _check_own(config: Mapping[str, Any]) -> None:
    """Check what is the configuration's own, and no part's."""
    from ntl.runs.identity import checked_name

    plain = compose(())
    for prefix, got, known in (("", config, plain), ("paths.", config["paths"], plain["paths"])):
        for key in got:
            if key not in known:
                raise ConfigurationError(did_you_mean("key", f"{prefix}{key}", [f"{prefix}{name}" for name in known]))
    seed = config["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigurationError(f"seed: got {seed!r}, expected an integer of at least 0")
    for name in ("retry", "force"):
        if not isinstance(config[name], bool):
            raise ConfigurationError(f"{name}: got {config[name]!r}, expected true or false")
    for name, path in config["paths"].items():
        if not isinstance(path, str) or not path.strip():
            raise ConfigurationError(f"paths.{name}: got {path!r}, expected the path of a folder")
    for part in ("dataset", "model", "loss"):  # they name folders below paths.*, and must not lead out of them
        checked_name(config, part)


def _encoding(config: Mapping[str, Any]) -> Callable[[TokenizerSource], Encoding]:
    """Return what builds the encoding of a run, once it has a tokenizer."""
    loss = config["loss"]
    got, accepted = loss["encoding"], get_class(loss["_target_"]).encodings
    if got not in accepted:
        raise ConfigurationError(
            f"loss '{loss['name']}' cannot use the encoding '{got}'; it accepts {', '.join(accepted)}"
        )
    return _make({"loss.encoding_options": _encoding_node(loss)}, "loss.encoding_options", partially=True)


def check_encoding(loss: Mapping[str, Any], *, family: str, answers: str, decode: str) -> None:
    """Raise a ValueError where a loss's encoding cannot be used with these models, answers and way of decoding."""
    node = _encoding_node(loss)
    arguments = {key: value for key, value in node.items() if key != "_target_"}
    get_class(node["_target_"]).check(family=family, answers=answers, decode=decode, **arguments)


def answers_of(dataset: Dataset) -> str:
    """What an encoding has to write: "number", or "text" where a number stands in prose."""
    return "text" if dataset.prose else dataset.answers


def _encoding_node(loss: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node that names the encoding's class and options (`loss.encoding_options`, where a loss has them)."""
    from ntl import encodings

    encoding = encodings.available()[loss["encoding"]]
    return {**loss.get("encoding_options", {}), "_target_": f"{encodings.__name__}.{encoding.__name__}"}


def _make(config: Mapping[str, Any], key: str, drop: tuple[str, ...] = (), partially: bool = False) -> Any:
    """Call the `_target_` of the node `key` with the options that it declares, the node's keys but for `drop`."""
    node = config[key]
    options.check_node(node, key, also=drop)
    arguments = {name: node[name] for name in options.declared_by(node["_target_"]) if name in node}
    if partially:
        return partial(get_class(node["_target_"]), **arguments)
    return get_class(node["_target_"])(**copy.deepcopy(arguments))
