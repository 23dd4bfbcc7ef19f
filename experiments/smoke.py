"""Whether everything runs: each loss on each dataset and model, and why some do not go together.

The nano models take every dataset and loss. The larger ones differ from them in numbers and source alone: built at nano
size from scratch, they take every loss on one dataset.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from experiments.analysis.records import ALGORITHM_VERSION, Record, load
from experiments.analysis.tables import Computed, Section, write
from experiments.config.compose import choices, compose
from experiments.config.paths import ROOT

BY_NAME_ONLY = True  # its records are kept apart, so that its table is made only where it is asked for
EXAMPLES = "data_prep/examples"
SMALL = "dataset.train_size=8", "dataset.validation_size=2", "dataset.test_size=2"
DATASETS: dict[str, tuple[str, ...]] = {
    "arithmetic": SMALL,
    "mathematics": ("dataset.difficulties=[easy]", *SMALL),
    "multiplication": ("dataset.digits=2", "dataset.extrapolation_digits=3", *SMALL),
    "gsm8k": ("dataset.source=local", f"dataset.folder={EXAMPLES}/gsm8k", "dataset.validation_size=2"),
    "rjokes": ("dataset.source=local", f"dataset.folder={EXAMPLES}/rjokes"),
    "multirc": ("dataset.source=local", f"dataset.folder={EXAMPLES}/multirc", "dataset.validation_passages=1"),
    "custom": (
        f"dataset.folder={EXAMPLES}/custom",
        "dataset.train=train.jsonl",
        "dataset.test=test.csv",
    ),
}
NANO = {"t5": "t5_nano", "gpt2": "gpt2_nano"}  # by family
ONE_DATASET = "arithmetic"


def arms() -> dict[str, list[str]]:
    """Each valid combination's overrides, by `<model>/<dataset>/<loss>`."""
    return {name: overrides for name, overrides in combinations().items() if refusal(name) is None}


@cache
def combinations() -> dict[str, list[str]]:
    """All combinations, valid or not, each with its overrides."""
    found = {}
    for model, sizes in models().items():
        for dataset in choices("dataset") if not sizes else (ONE_DATASET,):
            for loss in choices("loss"):
                choice = [f"model={model}", f"dataset={dataset}", f"loss={loss}"]
                found[f"{model}/{dataset}/{loss}"] = [*choice, *sizes, *DATASETS.get(dataset, ())]
    return found


@cache
def models() -> dict[str, list[str]]:
    """Every model that needs no source of weights to be built, with what makes it as small as its family's nano."""
    found: dict[str, list[str]] = {name: [] for name in NANO.values()}
    for name in choices("model"):
        nano = NANO.get(compose([f"model={name}"])["model"]["family"])
        if name in found or nano is None:  # a model of any family is whatever it is given
            continue
        size = compose([f"model={nano}"])["model"]["architecture"]
        own = compose([f"model={name}"])["model"]["architecture"]
        plus = {key: "" if key in own else "+" for key in size}
        found[name] = ["model.init=scratch", "model.tokenizer=bpe", "model.architecture.vocab_size=1"]
        found[name] += [f"{plus[key]}model.architecture.{key}={value}" for key, value in size.items()]
    return found


@cache
def refusal(name: str) -> str | None:
    """Why a combination is refused before any work, or None where it is not."""
    from experiments.config.compose import ConfigurationError
    from experiments.config.instantiate import check_encoding

    model, _, loss = (_node(*choice) for choice in zip(("model", "dataset", "loss"), name.split("/"), strict=True))
    try:
        check_encoding(loss, family=model["family"], answers=_answers(name.split("/")[1]), decode="generate")
    except (ValueError, ConfigurationError) as reason:
        return str(reason)
    return None


@cache
def _node(group: str, choice: str) -> dict[str, Any]:
    return compose([f"{group}={choice}"])[group]


@cache
def _answers(dataset: str) -> str:
    from experiments.config.instantiate import answers_of, make_dataset

    return answers_of(make_dataset(compose([f"dataset={dataset}", *DATASETS.get(dataset, ())])["dataset"]))


def sections() -> list[Section]:
    """A table of datasets for each nano model, one of the other models, and the reasons of what is refused."""
    reasons: dict[str, str] = {}
    states = dict(_states(reasons))
    found = []
    for model in NANO.values():
        found.append(_section(model, [(f"{model}/{dataset}", dataset) for dataset in choices("dataset")], states))
    further = [name for name in models() if name not in NANO.values()]
    heading = f"Other models, built at nano size, on {ONE_DATASET}"
    found.append(_section(heading, [(f"{model}/{ONE_DATASET}", model) for model in further], states))
    rows = [[letter, reason] for reason, letter in reasons.items()]
    return [*found, ("Refused before any work", ["", "reason"], rows)]


def _section(heading: str, columns: list[tuple[str, str]], states: Mapping[str, str]) -> Section:
    rows = [[loss, *(states[f"{start}/{loss}"] for start, _ in columns)] for loss in choices("loss")]
    return heading, ["loss", *(title for _, title in columns)], rows


def _states(reasons: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The state of every combination, `refused (a)` with the letter of its reason in `reasons`."""
    runs = _last_runs(results())
    for name in combinations():
        if reason := refusal(name):
            letter = reasons.setdefault(reason, chr(ord("a") + len(reasons)))
            yield name, f"refused ({letter})"
        else:
            yield name, runs[name].content["status"] if name in runs else "not run"


def results() -> Path:
    """Where the records of this experiment are kept."""
    return Path(compose(["experiment=smoke"])["paths"]["outputs"])


def _last_runs(folder: Path) -> dict[str, Record]:
    """The newest record of each combination by the present algorithm version, found by the names in it."""
    by_age = sorted(load(folder), key=lambda record: record.path.stat().st_mtime)
    return {
        "/".join(record.content["config"][part]["name"] for part in ("model", "dataset", "loss")): record
        for record in by_age
        if record.algorithm_version == ALGORITHM_VERSION
    }


def write_matrix(folder: Path) -> str:
    """Write the table into `folder` and return its text, the number of combinations in each state as first line."""
    text = next(p for p in write(MATRIX, "smoke", {}, folder) if p.suffix == ".md").read_text(encoding="utf-8")
    states = [state.split(" (")[0] for _, state in _states({})]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(states)} combinations: {counts}\n\n{text}"


class Matrix(Callback):
    """Hydra's callback: the matrix is written and printed when the sweep has ended, however it ended."""

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        if Path(config.paths.outputs).resolve() == results():
            atexit.register(lambda: print(write_matrix(ROOT / "results" / "tables")))


MATRIX = Computed(
    title="What runs: every loss, dataset and model",
    make=sections,
    notes=(
        "Two steps and a few rows each (`python run.py -m experiment=smoke`): that it runs, not that it learns.",
        "Datasets that come from a hub or a download are read from `data_prep/examples` here, a few invented rows in "
        "the published formats.",
        "The larger models differ from the nano ones in size and source alone. `model=custom` is whatever it is given "
        "and is tested apart.",
    ),
)
TABLES = (MATRIX,)
