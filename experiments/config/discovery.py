"""Which experiments there are: `conf/experiment/NAME.yaml` with `experiments/NAME.py` beside it, and nothing else.

A module declares what its experiment shows as `TABLES` and `FIGURES`. The same module serves the experiment at the
other scales, `gpu/NAME` and `paper/NAME`, which differ in their yaml alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from experiments.config.compose import ConfigurationError, experiment_names
from ntl.text import did_you_mean

SCALES = ("gpu", "paper")
_FOLDER = Path(__file__).resolve().parents[1]


def module_name(experiment: str) -> str | None:
    """The module that says what an experiment shows, or None."""
    scale, _, base = experiment.rpartition("/")
    path = base if scale in SCALES else experiment
    return f"experiments.{path.replace('/', '.')}" if (_FOLDER / f"{path}.py").exists() else None


def module(experiment: str) -> ModuleType:
    """Import the module of an experiment.

    Raises:
        ConfigurationError: the experiment has none.
    """
    found = module_name(experiment)
    if found is None:
        base = experiment.rpartition("/")[2]
        raise ConfigurationError(
            f"experiment '{experiment}' shows nothing: there is no experiments/{base}.py with TABLES or FIGURES; "
            f"those that do: {', '.join(shown())}"
        )
    return import_module(found)


def shown() -> list[str]:
    """The experiments that show something, at every scale."""
    return [name for name in experiment_names() if module_name(name)]


def named(names: Sequence[str], default: Sequence[str]) -> list[str]:
    """The experiments that a command line names, `default` where it names none.

    Raises:
        ConfigurationError: for an unknown one, with the nearest names.
    """
    for name in names:
        if name not in experiment_names():
            raise ConfigurationError(did_you_mean("experiment", name, experiment_names()))
    return list(dict.fromkeys(names)) or list(default)
