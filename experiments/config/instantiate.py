"""The objects that a configuration names, checked whole before any work starts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import get_class
from hydra.utils import instantiate as hydra_instantiate

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
        NotSupported: an implementation of the loss that the model does not have.
    """
    from ntl import models
    from ntl.models.linear_head import check_request

    parts = instantiate(config)
    models.find(parts.model)
    check_request(parts.train.loss_implementation, _sample_objective(parts), models.model_type(parts.model))
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
    return {**loss.get("encoding_options", {}), "_target_": f"{encoding.__module__}.{encoding.__qualname__}"}


def _check_types(target: type, arguments: Mapping[str, Any], where: str) -> None:
    """Raise a ConfigurationError for the first argument that is not as the constructor of `target` annotates it."""
    hints = typing.get_type_hints(target.__init__)
    for name, value in arguments.items():
        if name in hints and not options.fits(value, hints[name]):
            raise ConfigurationError(f"{where}.{name}: got {value!r}, expected {options.described(hints[name])}")


def _make(config: Mapping[str, Any], key: str, drop: tuple[str, ...] = (), partially: bool = False) -> Any:
    """Call the `_target_` of the node `key` with its other keys; `name` stays only where the target takes it."""
    import inspect

    node = config[key]
    target = get_class(node["_target_"])
    taken = inspect.signature(target).parameters
    arguments = {k: v for k, v in node.items() if k not in (*drop, "_target_") and (k != "name" or "name" in taken)}
    unknown = sorted(set(arguments) - set(taken))
    if unknown:
        raise ConfigurationError(
            f"{key}.{unknown[0]}: {node['_target_']} takes no such option; it takes {', '.join(taken)}"
        )
    if dataclasses.is_dataclass(target):
        for name, declared in options.options_of(target).items():
            if name in arguments:
                options.check_value(declared, arguments[name], key)
    else:
        _check_types(target, arguments, key)
    if partially:
        return partial(target, **arguments)
    try:
        return hydra_instantiate({"_target_": node["_target_"], **arguments}, _convert_="all")
    except InstantiationException as error:
        raise ConfigurationError(str(error.__cause__ or error)) from error
