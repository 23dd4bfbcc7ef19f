"""The published numbers and claims, as they stand in `results/paper/` with their sources."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "results" / "paper"
_METHODS = {"ce": "ce", "rt_ntl_mse": "rt_ntl@0.3"}  # in mathematics_per_module.csv
_PUBLISHED_AS = {"accuracy_paper_parser": "accuracy"}  # our metric that computes a published number as the paper did
# MultiRC's test file has no labels: the paper scores its validation file, which is the test split here.
_SPLITS = {("multirc", "validation"): "test"}


@dataclass(frozen=True)
class Published:
    """One published number."""

    id: str
    arm: str
    split: str
    metric: str
    value: float
    sd: float | None
    model: str
    source: str


@dataclass(frozen=True)
class Claim:
    """One testable claim. Arms are this suite's names; `paper_verdict` is helped, hurt, none, match or analytic."""

    id: str
    claim: str
    experiment: str
    baselines: tuple[str, ...]
    treatments: tuple[str, ...]
    split: str
    metric: str
    better: str
    paper_baseline: float | None
    paper_treatment: float | None
    paper_verdict: str
    paper_model: str
    source: str

    @property
    def no_effect(self) -> bool:
        """Whether the claim is one of no effect; `match` bounds only how much worse the treatment may be."""
        return self.paper_verdict in ("none", "match")

    @property
    def sign(self) -> int:
        """What makes treatment − baseline positive where it is as the paper claims; better, for claims of no effect."""
        return (1 if self.better == "higher" else -1) * (-1 if self.paper_verdict == "hurt" else 1)

    @property
    def paper_effect(self) -> float | None:
        """The published treatment − baseline, so signed."""
        if self.paper_baseline is None or self.paper_treatment is None:
            return None
        return round(self.sign * (self.paper_treatment - self.paper_baseline), 6) + 0.0  # no −0


def published(experiment: str, arm: str, split: str, metric: str, group: str = "all") -> Published | None:
    """The published number for an arm (or a trivial predictor) of an experiment, or None; `group` may be a module.

    An experiment at another scale (`gpu/ablation`, `paper/ablation`) has the same published numbers.
    """
    return _results().get((experiment.rpartition("/")[2], arm, split, _PUBLISHED_AS.get(metric, metric), group))


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the order of their ids."""
    return tuple(
        Claim(
            id=row["id"],
            claim=row["claim"],
            experiment=row["experiment"],
            baselines=tuple(row["baseline_arm"].split(";")),
            treatments=tuple(row["treatment_arm"].split(";")),
            split=row["split"],
            metric=row["metric"],
            better=row["better"],
            paper_baseline=_number(row["paper_baseline"]),
            paper_treatment=_number(row["paper_treatment"]),
            paper_verdict=row["paper_verdict"],
            paper_model=row["paper_model"],
            source=row["source"],
        )
        for row in _rows("claims.csv")
    )


@cache
def _results() -> dict[tuple[str, str, str, str, str], Published]:
    results = _by_module()
    for row in _rows("paper_results.csv"):
        split = _SPLITS.get((row["experiment"], row["split"]), row["split"])
        key = (row["experiment"], row["arm"], split, row["metric"], "all")
        if key in results:
            raise ValueError(f"{FOLDER / 'paper_results.csv'}: {results[key].id} and {row['id']} are the same number")
        results[key] = Published(
            id=row["id"],
            arm=row["arm"],
            split=split,
            metric=row["metric"],
            value=float(row["value"]),
            sd=_number(row["std"]),
            model=row["model"],
            source=row["source"],
        )
    return results


def _by_module() -> dict[tuple[str, str, str, str, str], Published]:
    """What was published of each module of the mathematics data."""
    name = "mathematics_per_module.csv"
    return {
        ("mathematics", _METHODS[row["method"]], row["split"], metric, row["module"]): Published(
            id=f"{row['method']}-{row['module']}-{metric}",
            arm=_METHODS[row["method"]],
            split=row["split"],
            metric=metric,
            value=float(row[column]),
            sd=None,
            model="t5_base",
            source=name,
        )
        for row in _rows(name)
        for metric, column in (("accuracy", "number_accuracy"), ("log_mae", "log_mae"), ("log_r2", "log_r2"))
        if row[column]
    }


def _rows(name: str) -> list[dict[str, str]]:
    with open(FOLDER / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return float(text) if text else None
