"""Which experiments there are: `conf/experiment/NAME.yaml` with `experiments/NAME.py`, and the same in `calibration/`.

A module declares what its experiment shows as `TABLES` and `FIGURES`, or, where that depends on what was measured, as
functions `tables(results)` and `figures(results)`. The same module serves the experiment at the other scales,
`pretrained/NAME`, `gpu/NAME` and `paper/NAME`, which differ in their yaml alone; of a table they show the arms that
they have. Modules in other folders are never taken for experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.config.compose import ConfigurationError, experiment_names, load_experiment
from ntl.text import did_you_mean

SCALES = ("pretrained", "gpu", "paper")
FOLDERS = ("", "calibration")  # those that hold modules of experiments
_FOLDER = Path(__file__).resolve().parents[1]


def module_name(experiment: str) -> str | None:
    """The module that says what an experiment shows, or None."""
    folder, _, base = experiment.rpartition("/")
    folder = "" if folder in SCALES else folder
    if folder not in FOLDERS or base.startswith("_") or not (_FOLDER / folder / f"{base}.py").exists():
        return None
    return ".".join(filter(None, ("experiments", folder, base)))


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


def declared(experiment: str, kind: str, *roots: Path) -> list[tuple[Any, Path]]:
    """What an experiment shows of a kind, "tables" or "figures", with the folder that it rests on.

    Args:
        roots: results and outputs. What depends on measurements is declared for each; all else for the first.

    Raises:
        ConfigurationError: the experiment has no module.
    """
    found = module(experiment)
    make = getattr(found, kind, None)
    if callable(make):
        made = [(one, root) for root in roots for one in make(root)]
        # A table of runs rests on records of both, so that it is declared once.
        declarations = [(one, root) for one, root in made if root == roots[0] or not hasattr(one, "restricted")]
    else:
        declarations = [(one, roots[0]) for one in getattr(found, kind.upper(), ())]
    if experiment.rpartition("/")[0] not in SCALES:
        return declarations
    arms = load_experiment(experiment).arms
    restricted = [(one.restricted(arms) if hasattr(one, "restricted") else one, root) for one, root in declarations]
    return [(one, root) for one, root in restricted if one is not None]


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
