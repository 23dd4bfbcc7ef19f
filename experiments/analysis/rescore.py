"""Scoring recorded runs again: are their metrics what their predictions give, and what do they lack?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.base import DataError, PreparedData, content_fingerprint
from experiments.analysis.records import RESCORED, Record, RecordError
from ntl.files import write_atomically
from ntl.runs.record import PREDICTIONS, read_predictions, sealed, to_json

if TYPE_CHECKING:
    from ntl.evaluation.answer import Answers
    from ntl.rows import Row


@dataclass
class Rescored:
    """What became of the records that were to be scored again, by run id."""

    equal: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # and why
    problems: dict[str, list[str]] = field(default_factory=dict)  # differences, damaged files
    written: dict[Path, int] = field(default_factory=dict)  # files, and how many metrics the record lacks


@dataclass(frozen=True)
class _Scored:
    """The rows that runs with the same data answered, and the trivial predictors' metrics on them."""

    kind: str
    rows: dict[str, Sequence[Row]]
    fill: str | None
    trivial: dict[str, Any]


def rescore(records: Iterable[Record], data: Path) -> Rescored:
    """Compute every text metric of finished runs again, and write those that a record lacks beside it.

    A record is skipped where it has no predictions, or the data folder does not hold its data.

    Args:
        data: folder of prepared data; data is found by its fingerprint, whatever options it was prepared with.
    """
    from ntl.evaluation import rescore as scoring

    done, prepared, known = Rescored(), _prepared(data), {}
    for record in records:
        if not record.finished:
            continue
        if PREDICTIONS not in record.content["files"]:
            done.skipped[record.id] = "its record names no predictions"
            continue
        if record.data not in prepared:
            name = record.content["data"].get("name")
            done.skipped[record.id] = (
                f"its data ({name}, fingerprint {str(record.data)[:16]}) is not prepared in {data}; "
                f"prepare it with `python -m data_prep {name}` and the options in its record"
            )
            continue
        try:
            examples = record.content["config"]["eval"].get("examples")
            key = record.data, examples
            if key not in known:
                known[key] = _load(prepared[record.data], examples)
            scored = known[key]
            computed = scoring.rescore(_answered(record.path.parent), scored.rows, kind=scored.kind, fill=scored.fill)
            differences, lacking = scoring.compare(record.content["metrics"], computed | scored.trivial)
        except (RecordError, DataError, scoring.Mismatch) as error:
            done.problems[record.id] = [str(error)]
        else:
            if differences:
                done.problems[record.id] = [str(difference) for difference in differences]
            else:
                done.equal.append(record.id)
                _write(record, lacking, done)
    return done


def _prepared(data: Path) -> dict[str, Path]:
    """Folders of prepared data by fingerprint, as their manifests say; the files are verified when they are read."""
    found = {}
    for path in sorted(data.glob("*/*/manifest.json")):
        try:
            files = json.loads(path.read_text(encoding="utf-8"))["files"]
            hashes = {name.removesuffix(".jsonl"): entry["sha256"] for name, entry in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not a prepared data set
        found[content_fingerprint(hashes)] = path.parent
    return found


def _load(folder: Path, examples: int | None) -> _Scored:
    from ntl.evaluation import rescore as scoring
    from ntl.evaluation.score import trivial as trivial_predictors

    prepared = PreparedData.load(folder)
    kind = prepared.manifest["answers"]
    rows = {split: prepared.rows(split)[:examples] for split in prepared.splits if split != "train"}
    trivial, fill = trivial_predictors(prepared.rows("train"), rows, kind)
    return _Scored(kind, rows, fill, scoring.rescore(trivial, rows, kind=kind, fill=fill))


def _answered(folder: Path) -> dict[str, dict[str, Answers]]:
    """A run's answers by state and split, in the order of the questions."""
    from ntl.evaluation.answer import Answers
    from ntl.evaluation.rescore import Mismatch

    answered: dict[str, dict[str, Answers]] = {}
    for (state, split), rows in read_predictions(folder).sort_values("index").groupby(["state", "split"]):
        if rows["index"].tolist() != list(range(len(rows))):
            raise Mismatch(f"the answers for {state}, {split} are not numbered 0 to {len(rows) - 1}")
        answered.setdefault(state, {})[split] = Answers(rows["text"].tolist(), rows["truncated"].tolist(), [])
    return answered


def _write(record: Record, lacking: dict[str, Any], done: Rescored) -> None:
    path = record.path.parent / RESCORED
    if not lacking:
        path.unlink(missing_ok=True)  # of metrics that are no more
        return
    content = {"id": record.id, "record": record.content["digest"], "metrics": lacking}
    write_atomically(path, to_json(sealed(content)))
    done.written[path] = sum(
        len(values) for splits in lacking.values() for groups in splits.values() for values in groups.values()
    )
