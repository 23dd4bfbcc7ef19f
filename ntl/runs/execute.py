"""Executing a run: train, answer, score, record.

Everything that a run needs is given as objects; how they were configured is not known here.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ntl import data as layouts
from ntl import distributed, models, predict
from ntl.evaluation import answer as evaluation
from ntl.evaluation.baselines import CEILING
from ntl.evaluation.score import perfect, score, trivial
from ntl.models import initialisation, lora
from ntl.quiet import quiet_libraries
from ntl.runs import faults, tracking
from ntl.runs.lease import LeaseLost
from ntl.runs.run import RecordNotWritten, Run, reason_of
from ntl.settings import EvalSettings, ModelSettings, TrainSettings
from ntl.training import train as training
from ntl.training.meters import count_labels
from ntl.training.stopping import Stopped

if TYPE_CHECKING:
    from ntl.encodings import Encoding, TokenizerSource
    from ntl.losses.objectives import Objective
    from ntl.rows import Row
    from ntl.runs.tracking import Tracker

log = logging.getLogger(__name__)

# What is measured of answers while training, where it has a value (`train.answer_examples`).
CURVES = ("accuracy", "mape_filled", "log_mae", "spearman", "rouge1", "nll", "digit_error")
GROUP_CURVES = ("accuracy", "mape_filled", "nll")  # of each group of answers (`train.answer_groups`)
SAVED_ANSWERS = 8  # questions that the saved model is asked again


class Dataset(Protocol):
    """What a run asks of a data set: what its answers are ("number" or "text"), and its test splits."""

    answers: str
    test_splits: Sequence[str]


class Prepared(Protocol):
    """Prepared data on disk."""

    fingerprint: str
    splits: Sequence[str]
    manifest: Mapping[str, Any]  # with sizes, and files with their sha256

    def rows(self, split: str) -> Sequence[Row]: ...


@dataclass
class Parts:
    """What a run is made of; `objective` still takes the number vocabulary, `encoding` a tokenizer's source."""

    model: ModelSettings
    dataset: Dataset
    objective: Callable[..., Objective]
    encoding: Callable[[TokenizerSource], Encoding]
    train: TrainSettings
    eval: EvalSettings
    tracker: Tracker


def execute_or_fail(parts: Parts, prepared: Prepared, run: Run) -> None:
    """Execute a run whose lease is held; one that cannot go on is recorded as failed with its reason.

    Raises:
        Exception: whatever ended the run, also where that has been recorded; faults of the machine as `faults` names
            them.
    """
    try:
        with faults.explained(run.folder):
            execute(parts, prepared, run)
    except (faults.DiskFull, RecordNotWritten, LeaseLost, models.NotAvailable) as error:
        # Nothing can be recorded, or it is another process's to record, or another time there is room, or the model.
        log.error("%s: not recorded: %s", run.id, error)
        raise
    except (Exception, Stopped) as error:
        if not distributed.is_first():
            if not isinstance(error, Stopped):
                distributed.tell(reason_of(error))
            raise
        reason = distributed.told() if distributed.size() > 1 else None
        if reason is None and isinstance(error, Stopped):
            raise
        if reason is None and distributed.lost(error):
            raise ConnectionError(
                f"another process of {run.id} has ended; the same command goes on from the last checkpoint"
            ) from error
        run.fail(reason or error)
        log.error("%s: failed: %s", run.id, reason["message"] if reason else error)
        raise


def execute(parts: Parts, prepared: Prepared, run: Run) -> None:
    """Train, answer, score, record.

    Args:
        run: gives the seed and the folder, and takes the record; only the first of several processes writes.
    """
    quiet_libraries()
    seed = run.config["seed"]
    rows = {split: prepared.rows(split) for split in prepared.splits}
    tests = {split: rows[split][: parts.eval.examples] for split in ("validation", *parts.dataset.test_splits)}

    # Numbers, model and loss.
    tokenizer = models.tokenizer_source(parts.model, rows["train"])
    encoding = parts.encoding(tokenizer)
    encoding.fit(rows)
    model = models.build(parts.model, encoding, seed)
    initial = initialisation.fingerprints(model)  # what paired arms must share
    model.to("cuda" if torch.cuda.is_available() and parts.train.device == "auto" else "cpu")
    objective = parts.objective(numbers=encoding.numbers)
    layout = layouts.layout_for(model.config.is_encoder_decoder, encoding, parts.model.loss_on)
    encoded = partial(layouts.EncodedDataset, encoding=encoding, question_tokens=parts.model.question_tokens)
    train_data = encoded(rows["train"])
    validation = encoded(rows["validation"][: parts.train.eval_examples])
    test_data = {split: encoded(tests[split]) for split in tests}
    limit = evaluation.answer_limit(parts.eval, train_data, test_data)
    truncation = evaluation.truncation_notes(test_data, limit)
    for note in truncation if distributed.is_first() else ():
        log.warning("%s: %s", run.id, note)
    counted = {"data": encoding.take_report()}  # such as numbers that were rounded
    if cut := {split: data.cut for split, data in {"train": train_data, **test_data}.items() if data.cut}:
        counted["questions cut"] = cut
    everything = {"train": train_data, "validation, while training": validation, **test_data}
    evaluation.check_lengths(model.config, layout, everything, limit)

    def answers(state: str) -> dict[str, evaluation.Answers]:
        with faults.explained(run.folder, during="answering"):
            given = {
                split: evaluation.answer(
                    model, encoding, layout, data, parts.eval, limit, f"{run.id}: {state}, {split}"
                )
                for split, data in test_data.items()
            }
        counted[state] = dict(sum(map(Counter, distributed.gathered(encoding.take_report())), Counter()))
        return given

    kind = parts.dataset.answers
    constants, fill = trivial(rows["train"], tests, kind)
    curve_rows = rows["validation"][: parts.train.answer_examples]
    curve_data = encoded(curve_rows)
    _check_groups(parts.train, curve_rows)

    def measure() -> dict[str, float]:
        given = evaluation.answer(model, encoding, layout, curve_data, parts.eval, limit)
        encoding.take_report()  # the record counts what happens to the final answers
        by = parts.train.answer_groups or "module"
        scores = score(given, curve_rows, kind=kind, fill=fill, group_by=by).metrics
        curves = {name: scores["all"].get(name) for name in CURVES}
        for group in sorted(scores.keys() - {"all"}) if parts.train.answer_groups else ():
            curves |= {f"{name}/{group}": scores[group].get(name) for name in GROUP_CURVES}
        return {name: value for name, value in curves.items() if value is not None}

    # The untouched model is scored too: what training adds is a difference.
    answered = {"untrained": answers("untrained")} if parts.eval.untrained else {}

    folder = run.folder / "checkpoints"
    with parts.tracker if distributed.is_first() else tracking.NoTracker() as tracker:
        tracker.start(run.id, run.config, distributed.decided(lambda: training.history(folder)), run.folder)
        with faults.explained(run.folder, during="training"):
            trained = training.train(
                model,
                layout,
                objective,
                train_data,
                validation,
                parts.train,
                seed,
                folder,
                tell=tracker.log,
                title=run.id,
                measure=measure if curve_rows else None,
            )
        described = models.describe(trained.model, parts.model)
        model = lora.merged(trained.model)  # what is scored is what is saved
        start = time.perf_counter()
        answered["trained"] = answers("trained")
        evaluation_seconds = time.perf_counter() - start
        if not distributed.is_first():
            return  # the first one scores, saves and records

        # The trivial predictors and a perfect model are scored on the same path as the model.
        ceiling = {split: perfect(data, encoding) for split, data in test_data.items()}
        scored = answered | constants | {CEILING: ceiling}
        scores = {
            (state, split): score(given, tests[split], kind=kind, fill=fill)
            for state, splits in scored.items()
            for split, given in splits.items()
        }
        metrics = {state: {split: scores[state, split].metrics for split in tests} for state in scored}
        tracker.finish(metrics["trained"])

    gpu = torch.cuda.is_available()
    labels, numbers = count_labels(objective, layout, train_data)
    fields = {
        "metrics": metrics,
        "timings": {
            "train_seconds": trained.seconds,
            "steps_per_second": trained.steps_per_second,
            "evaluation_seconds": evaluation_seconds,
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "peak_gpu_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if gpu else None,
        },
        "data": {
            "name": run.config["dataset"]["name"],
            "fingerprint": prepared.fingerprint,
            "files": {name: entry["sha256"] for name, entry in prepared.manifest["files"].items()},
            "sizes": prepared.manifest["sizes"],
            "training_labels": {"all": labels, "numbers": numbers, "per_number": labels / numbers if numbers else None},
            "references_beyond_limit": {split: data.answers_beyond(limit) for split, data in test_data.items()},
        },
        "model": described
        | {
            "initial_weights": initial,
            "best_step": trained.best_step,
            "max_new_tokens": limit,
            "encoding": {when: counts for when, counts in counted.items() if counts},
        },
        "notes": truncation
        + sorted(
            f"{state}, {split}, {group}: {name} is undefined: {why}"
            for (state, split), scored in scores.items()
            for group, notes in scored.notes.items()
            for name, why in notes.items()
        ),
    }
    predictions = (
        {"state": state, "split": split, "index": index, "text": text, "truncated": cut}
        for state, splits in answered.items()
        for split, given in splits.items()
        for index, (text, cut) in enumerate(zip(given.texts, given.truncated, strict=True))
    )
    final = predict.Trained(model, encoding, layout, parts.eval, limit, parts.model.question_tokens)
    predict.save(run.folder / "model", final, parts.model.loss_on)
    few = [row["question"] for row in tests[parts.dataset.test_splits[0]][:SAVED_ANSWERS]]
    predict.check_saved(run.folder / "model", final, few)
    run.finish(fields, trained.history, predictions)
    training.remove_checkpoints(folder)


def _check_groups(settings: TrainSettings, rows: Sequence[Row]) -> None:
    """Raise a ValueError for `answer_groups` where there are no such curves, or rows without that field."""
    field = settings.answer_groups
    if field is not None and not rows:
        raise ValueError(f"train.answer_groups: got {field!r} with train.answer_examples=0, expected some to group")
    if field is not None and any(field not in row for row in rows):
        extras = sorted(set.intersection(*map(set, rows)) - {"question", "answer"})
        known = ", ".join(extras) or "there is none"
        raise ValueError(f"train.answer_groups: got {field!r}, expected a field of all validation questions ({known})")
