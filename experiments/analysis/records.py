"""Finding the records of an experiment among the published ones and those of the user's own runs.

A run belongs to no experiment: a record is an arm's when the key of its configuration is that of the one that the
experiment composes for that arm and seed. Two experiments share the runs that they have in common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.config.compose import Experiment, run_config
from experiments.config.paths import in_repository
from ntl.evaluation.baselines import CEILING, TRIVIAL
from ntl.runs.record import is_finite_number, is_sealed, leaves, read_json
from ntl.runs.run import ALGORITHM_VERSION, RecordError, key, read_record

__all__ = [
    "CEILING",
    "RESCORED",
    "TRIVIAL",
    "UNTRAINED",
    "ArmRuns",
    "Conflict",
    "Record",
    "RecordError",
    "Records",
    "arm_runs",
    "command",
    "disputed",
    "from_where",
    "key",
    "load",
]

RESULTS = Path(in_repository("results"))
OUTPUTS = Path(in_repository("outputs"))
UNTRAINED = "untrained"
RESCORED = "rescored.json"  # beside a record: metrics that it lacks, see `rescore`


class Conflict(ValueError):
    """Records that contradict one another: each is whole, but they cannot stand in one table."""


@dataclass(frozen=True)
class Record:
    """One `record.json`, read.

    Attributes:
        published: it lies in the results folder, rather than in the user's outputs.
        disputed: published, while the outputs hold a record of the same run with other results.
    """

    path: Path
    content: Mapping[str, Any] = field(repr=False)
    published: bool = True
    disputed: bool = False

    @property
    def id(self) -> str:
        return self.content["id"]

    @property
    def finished(self) -> bool:
        return self.content["status"] == "finished"

    @property
    def reason(self) -> str:
        """Why the run failed, on one line."""
        reason = self.content["reason"] or {}
        where = f" ({reason['where']})" if reason.get("where") else ""
        return " ".join(f"{reason.get('type', 'failed')}: {reason.get('message', '')}{where}".split())

    @property
    def algorithm_version(self) -> int:
        return self.content["code"].get("algorithm_version", 1)

    @property
    def data(self) -> str | None:
        """Fingerprint of the data that the run was trained and scored on."""
        return self.content["data"].get("fingerprint")

    @property
    def labels_per_number(self) -> float | None:
        """Labels per number label of the training split, in the run's encoding; None where it is not known."""
        found = (self.content["data"].get("training_labels") or {}).get("per_number")
        return found if is_finite_number(found) else None

    @property
    def key(self) -> str:
        """What its configuration computes, as the run said it: what the record names is never looked up."""
        return self.content["key"]

    def value(self, state: str, split: str, metric: str, group: str = "all") -> float | None:
        """`metrics[state][split][group][metric]`, or None where it is absent or undefined.

        A metric that the record lacks is taken from `rescored.json`.
        """
        place = (state, split, group, metric)
        found = _at(self.content["metrics"], place)
        if found is _ABSENT:
            found = _at(self._rescored, place)
        if found is _ABSENT:
            return None
        if isinstance(found, list):
            raise RecordError(
                self.path, f"metrics.{state}.{split}.{group}.{metric} is a list, and a number is expected"
            )
        return None if found is None else float(found)

    @cached_property
    def _rescored(self) -> Mapping[str, Any]:
        """Metrics computed after the run; none where they were computed for another record in this folder."""
        path = self.path.parent / RESCORED
        if not path.exists():
            return {}
        again = "remove it and give the command `python -m experiments rescore`"
        try:
            content = read_json(path)
        except RecordError as error:
            raise RecordError(path, error.problem, again) from error
        if not isinstance(content, dict) or not is_sealed(content):
            raise RecordError(path, "its content has changed since it was written", again)
        if content.get("record") != self.content["digest"]:
            return {}
        for where, value in leaves(content.get("metrics"), depth=4):
            if value is not None and not is_finite_number(value):
                raise RecordError(path, f"metrics.{where} is no number", again)
        return content["metrics"]

    def groups(self, split: str) -> tuple[str, ...]:
        """The groups (modules) that the trained model was scored on, without "all"."""
        scored = self.content["metrics"].get("trained", {}).get(split, {})
        return tuple(sorted(set(scored) - {"all"}))


_ABSENT = object()


def _at(metrics: Any, place: Sequence[str]) -> Any:
    """The value at a place of nested mappings, or `_ABSENT`."""
    for name in place:
        if not isinstance(metrics, Mapping) or name not in metrics:
            return _ABSENT
        metrics = metrics[name]
    return metrics


class Records:
    """Records, found by configuration."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_key: dict[str, list[Record]] = defaultdict(list)
        self._arm_runs: dict[str, dict[str, ArmRuns]] = {}  # many tables and claims ask for the same
        for record in records:
            self._by_key[record.key].append(record)

    def __iter__(self) -> Iterator[Record]:
        return (record for records in self._by_key.values() for record in records)

    def select(self, config: Mapping[str, Any]) -> Record | None:
        """The record of that configuration: one by the present algorithm version before an older one.

        Raises:
            Conflict: two different records of the present version answer to it.
        """
        found = sorted(self._by_key.get(key(config), ()), key=lambda record: record.algorithm_version)
        current = [record for record in found if record.algorithm_version == ALGORITHM_VERSION]
        if len(current) > 1:
            paths = " and ".join(str(record.path.parent) for record in current)
            fingerprints = {record.data for record in current}
            why = "they were computed on different data" if len(fingerprints) > 1 else "their configurations are equal"
            raise Conflict(
                f"got {len(current)} records for one arm and seed, expected one: {paths} ({why}); "
                "remove the folder that should not count, or make the difference part of the configuration"
            )
        return current[0] if current else (found[-1] if found else None)


def load(results: Path | None = RESULTS, outputs: Path | None = None) -> Records:
    """Read every record below `results/runs` (published) and `outputs/runs` (the user's own); either may be None.

    A run that both hold counts once, as published; where the two have different results, the record is `disputed`.

    Raises:
        RecordError: naming the first file that is damaged.
    """
    published, own = _read(results), _read(outputs)
    found = {identity: replace(record, published=False) for identity, record in own.items()}
    for identity, record in published.items():
        other = own.get(identity)
        disputed = other is not None and _outcome(other) != _outcome(record)
        found[identity] = replace(record, disputed=disputed)
    return Records(found[identity] for identity in sorted(found))


def _read(root: Path | None) -> dict[str, Record]:
    paths = [] if root is None else sorted((Path(root) / "runs").glob("*/*/record.json"))
    return {path.parent.name: Record(path, read_record(path)) for path in paths}


def _outcome(record: Record) -> tuple[Any, ...]:
    """What a table shows of a record; times and versions may differ."""
    return record.content["status"], record.content["metrics"], record.algorithm_version


@dataclass(frozen=True)
class ArmRuns:
    """What is known of one arm: for each declared seed a finished record, a failed one, an outdated one, or nothing."""

    arm: str
    seeds: tuple[int, ...]
    finished: Mapping[int, Record]
    failed: Mapping[int, Record]
    outdated: Mapping[int, Record]  # computed by an older algorithm version: shown, not counted

    @property
    def records(self) -> tuple[Record, ...]:
        """All records of the arm, whatever their state."""
        return (*self.finished.values(), *self.failed.values(), *self.outdated.values())

    @property
    def missing(self) -> tuple[int, ...]:
        """Seeds that have yet to be run: without a record, or with an outdated one."""
        return tuple(seed for seed in self.seeds if seed not in self.finished and seed not in self.failed)

    def values(self, split: str, metric: str, group: str = "all", state: str = "trained") -> dict[int, float]:
        """The metric by seed, for the finished seeds where it is defined."""
        values = {seed: record.value(state, split, metric, group) for seed, record in self.finished.items()}
        return {seed: value for seed, value in values.items() if value is not None}


def arm_runs(experiment: Experiment, records: Records) -> dict[str, ArmRuns]:
    """Select the records of every arm and seed of an experiment, in the yaml's order."""
    memory = f"{experiment.name} {experiment.overrides}"
    if memory in records._arm_runs:
        return records._arm_runs[memory]
    arms: dict[str, ArmRuns] = {}
    for arm in experiment.arms:
        finished, failed, outdated = {}, {}, {}
        for seed in experiment.seeds_of[arm]:
            record = records.select(run_config(experiment, arm, seed))
            if record is None:
                continue
            if record.algorithm_version != ALGORITHM_VERSION:
                outdated[seed] = record
            elif record.finished:
                finished[seed] = record
            else:
                failed[seed] = record
        arms[arm] = ArmRuns(arm, tuple(experiment.seeds_of[arm]), finished, failed, outdated)
    records._arm_runs[memory] = arms
    return arms


def from_where(arms: Mapping[str, ArmRuns]) -> str:
    """Where the records of these arms come from: "published", "outputs, not published", or how many of each."""
    records = [record for runs in arms.values() for record in runs.records]
    published = sum(record.published for record in records)
    own = len(records) - published
    if published and own:
        return f"{published} published; {own} in outputs, not published"
    return "published" if published else "outputs, not published" if own else "none yet"


def disputed(arms: Mapping[str, ArmRuns]) -> list[str]:
    """The ids of published records of which the outputs hold another version with different results."""
    return sorted(record.id for runs in arms.values() for record in runs.records if record.disputed)


def command(experiment: str, arms: Mapping[str, ArmRuns] | None = None, retry: bool = False) -> str:
    """The command that runs what is missing of these arms (all of the experiment by default)."""
    words = ["python run.py -m", f"experiment={experiment}"]
    if arms is not None:
        words.append("arm=" + ",".join(arms))
    if retry:
        words.append("retry=true")
    return " ".join(words)
