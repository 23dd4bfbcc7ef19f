"""Declarations of tables: what an experiment shows. `frame` computes the numbers, and `rendering` writes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from experiments.analysis.metrics import MEDIANS

EACH = ("each module",)
SPLITS = {"interpolate": "Interpolation", "extrapolate": "Extrapolation", "test": "Test", "validation": "Validation"}
CONSTANTS = {"mean": "constant: mean", "median": "constant: median", "most_frequent": "constant: most frequent"}

Values = Mapping[int, float]  # by seed
Section = tuple[str, list[str], list[list[str]]]  # a heading, the headers of its columns, and the rows
Runs = TypeVar("Runs")


@dataclass(frozen=True)
class Comparison:
    """A paired comparison beside those to the table's baseline; `why` says what it tells."""

    treatment: str
    baseline: str
    why: str = ""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.treatment, self.baseline)

    def sides(self, values: Callable[[str], Values]) -> tuple[Values, Values]:
        """What is compared, from the values of each arm."""
        return values(self.treatment), values(self.baseline)


@dataclass(frozen=True)
class Interaction:
    """Whether one comparison comes out otherwise than another: the difference of their differences, seed by seed."""

    first: Comparison
    second: Comparison
    why: str = ""

    @property
    def treatment(self) -> str:
        return f"({self.first.treatment} − {self.first.baseline})"

    @property
    def baseline(self) -> str:
        return f"({self.second.treatment} − {self.second.baseline})"

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.first.arms, *self.second.arms)

    def sides(self, values: Callable[[str], Values]) -> tuple[Values, Values]:
        """The differences of both comparisons."""
        return _differences(*self.first.sides(values)), _differences(*self.second.sides(values))


@dataclass(frozen=True)
class Computed:
    """A table that needs no run: `make` computes its sections when the table is written."""

    title: str
    make: Callable[[], Sequence[Section]]
    name: str = ""
    notes: tuple[str, ...] = ()

    def file_name(self, experiment: str) -> str:
        return f"{experiment}_{self.name}" if self.name else experiment


@dataclass(frozen=True)
class Table:
    """One table of an experiment: rows are its arms in the yaml's order, then the untrained model and the constants."""

    title: str
    splits: tuple[str, ...]
    metrics: tuple[str, ...]
    baseline: str  # the arm that every other is compared with
    name: str = ""  # suffix of the file, where an experiment has several tables
    arms: tuple[str, ...] | None = None  # None: all of the experiment
    groups: tuple[str, ...] = ("all",)  # or EACH: one section for each module that was scored
    comparisons: tuple[Comparison | Interaction, ...] = ()
    paper_setting: str = ""  # the published runs in one sentence
    notes: tuple[str, ...] = ()

    def file_name(self, experiment: str) -> str:
        return f"{experiment}_{self.name}" if self.name else experiment

    def heading(self, experiment: str) -> str:
        """The title, with the scale where it is not that of two CPU cores."""
        return f"{self.title} ({experiment})" if "/" in experiment else self.title

    def shown_metrics(self) -> tuple[str, ...]:
        """The metrics, each followed by the median that belongs beside it."""
        names: list[str] = []
        for name in self.metrics:
            names += [name, MEDIANS[name]] if name in MEDIANS else [name]
        return tuple(dict.fromkeys(names))

    def restricted(self, arms: Collection[str]) -> Table | None:
        """The same table of these arms alone, for scales that have fewer arms; None without the baseline."""
        if self.baseline not in arms:
            return None
        comparisons = tuple(one for one in self.comparisons if set(one.arms) <= set(arms))
        shown = None if self.arms is None else tuple(arm for arm in self.arms if arm in arms)
        return replace(self, arms=shown, comparisons=comparisons)

    def choose(self, experiment: str, arms: Mapping[str, Runs]) -> dict[str, Runs]:
        """The arms that the table shows, in the yaml's order.

        Raises:
            ValueError: the table names an arm that the experiment does not have.
        """
        named = [self.baseline, *(self.arms or ()), *(arm for one in self.comparisons for arm in one.arms)]
        unknown = sorted(set(named) - set(arms))
        if unknown:
            raise ValueError(
                f"the table of '{experiment}' names {', '.join(unknown)}; "
                f"conf/experiment/{experiment}.yaml has the arms {', '.join(arms)}"
            )
        return {arm: runs for arm, runs in arms.items() if self.arms is None or arm in self.arms}


def _differences(treatment: Values, baseline: Values) -> dict[int, float]:
    """Treatment − baseline on the seeds that both have."""
    return {seed: treatment[seed] - baseline[seed] for seed in treatment if seed in baseline}
