"""The numbers of a table, gathered from records in one data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.analysis import published as paper
from experiments.analysis.records import TRIVIAL, UNTRAINED, ArmRuns, Conflict, Record
from experiments.analysis.statistics import NOTHING, Paired, common, paired, summarise
from experiments.analysis.table import EACH, Table

COLUMNS = [
    "row", "kind", "split", "group", "metric", "mean", "sd", "n", "seeds", "failed",
    "baseline", "difference", "ci_low", "ci_high", "p", "sign_flip_p", "pairs",
    "paper", "paper_sd", "paper_model", "paper_source", "values",
]  # fmt: skip


def frame(table: Table, experiment: str, arms: Mapping[str, ArmRuns]) -> pd.DataFrame:
    """Gather a table's numbers: one line per row, split, group and metric, columns `COLUMNS`.

    Raises:
        Conflict: the records of the table's arms were not computed on the same data.
        ValueError: the table names an arm that the experiment does not have.
    """
    arms = table.choose(experiment, arms)
    same_data(arms.values())
    records = [record for runs in arms.values() for record in runs.finished.values()]
    reference = arms[table.baseline] if arms[table.baseline].finished else first_with_runs(arms)
    lines = []
    for split in table.splits:
        groups = sorted({g for r in records for g in r.groups(split)}) if table.groups == EACH else table.groups
        for group in groups:
            for name in table.shown_metrics():
                at = {"split": split, "group": group, "metric": name}
                base = arms[table.baseline].values(split, name, group)
                for arm, runs in arms.items():
                    values = runs.values(split, name, group)
                    compared = NOTHING if arm == table.baseline else _compare(values, base)
                    lines.append(
                        {"row": arm, "kind": "arm", **at, **_cell(values), **_counts(runs)}
                        | ({"baseline": table.baseline, **_difference(compared)} if arm != table.baseline else {})
                        | _published(experiment, arm, split, name, group)
                    )
                untrained = reference.values(split, name, group, UNTRAINED) if reference else {}
                lines.append({"row": UNTRAINED, "kind": "untrained", **at, **_cell(untrained)})
                for state in TRIVIAL:
                    constant = trivial_value(records, state, split, name, group)
                    published = _published(experiment, state, split, name, group)
                    lines.append({"row": state, "kind": "constant", **at, "mean": constant, **published})
                for comparison in table.comparisons:
                    compared = _compare(*comparison.sides(lambda arm, at=(split, name, group): arms[arm].values(*at)))
                    both = {"row": comparison.treatment, "baseline": comparison.baseline, "kind": "comparison"}
                    seeds = len(arms[comparison.arms[0]].seeds)
                    lines.append({**both, **at, "seeds": seeds, **_difference(compared)})
    columns = pd.DataFrame(lines, columns=COLUMNS)
    whole = ["n", "seeds", "failed", "pairs"]
    return columns.astype(dict.fromkeys(whole, "Int64"))


def same_data(arms: Iterable[ArmRuns]) -> None:
    """Raise a Conflict where finished records were computed on different data: they cannot be compared."""
    first: Record | None = None
    for runs in arms:
        for record in runs.finished.values():
            first = first or record
            if record.data != first.data:
                raise Conflict(
                    f"got records on different data: {first.path.parent} and {record.path.parent}; "
                    "expected all arms of a comparison on the same; prepare the data from one source and run one again"
                )


def trivial_value(records: Sequence[Record], state: str, split: str, name: str, group: str) -> float | None:
    """A trivial predictor's value: the same in every record on the same data."""
    values = {record.value(state, split, name, group) for record in records} - {None}
    if not values:
        return None
    if max(values) - min(values) > 1e-9 * max(1.0, abs(max(values))):
        raise Conflict(
            f"got {len(values)} values of {name} on {split} for the constant '{state}', expected one from records on "
            f"the same data: {', '.join(sorted({r.path.parent.name for r in records}))}; were they scored on the same "
            "questions (eval.examples)?"
        )
    return min(values)


def first_with_runs(arms: Mapping[str, ArmRuns]) -> ArmRuns | None:
    """The first arm that has a finished run."""
    return next((runs for runs in arms.values() if runs.finished), None)


def _cell(values: Mapping[int, float]) -> dict[str, Any]:
    summary = summarise(list(values.values()))
    return {"mean": summary.mean, "sd": summary.sd, "n": summary.n, "values": dict(values)}


def _counts(runs: ArmRuns) -> dict[str, int]:
    return {"n": len(runs.finished), "seeds": len(runs.seeds), "failed": len(runs.failed)}


def _compare(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> Paired:
    _, ours, theirs = common(treatment, baseline)
    return paired(ours, theirs)


def _difference(comparison: Paired) -> dict[str, Any]:
    return {
        "difference": comparison.difference,
        "ci_low": comparison.low,
        "ci_high": comparison.high,
        "p": comparison.p,
        "sign_flip_p": comparison.sign_flip_p,
        "pairs": comparison.n,
    }


def _published(experiment: str, arm: str, split: str, name: str, group: str) -> dict[str, Any]:
    found = paper.published(experiment, arm, split, name, group)
    if found is None:
        return {}
    return {
        "paper": found.value,
        "paper_sd": found.sd,
        "paper_model": found.model,
        "paper_source": found.source,
    }
