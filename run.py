"""Train and score one model, or with -m every arm and seed of an experiment; `python run.py --help` says how.

The path of a run, from top to bottom: configuration → data → encoding and model → objective → training → answers →
scores → record. What each step does is in the module it calls.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from experiments import configuration
from ntl.stopping import requeued_when_stopped

if TYPE_CHECKING:
    from data_prep.base import PreparedData
    from experiments.parts import Parts
    from ntl.runs import Run

configuration.register()
log = logging.getLogger("run")
OURS = ("data_prep", "experiments", "ntl", "submitit")  # submitit's errors are sbatch's


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(_: DictConfig) -> None:
    """Hydra's part: launch one job per run. Each job composes its own configuration, its arm's overrides included."""
    job = HydraConfig.get()
    at_once = "joblib" in job.launcher._target_
    if at_once:  # each process has a line of its own for its progress bar
        os.environ.setdefault("TQDM_POSITION", str(job.job.num % (os.cpu_count() or 1)))
    with requeued_when_stopped():
        run(configuration.compose(list(job.overrides.task)), one_thread=at_once)


def run(config: Mapping[str, Any], one_thread: bool = False) -> None:
    """Do the run that `config` describes and record it, unless that has been done."""
    from experiments.parts import instantiate

    parts = instantiate(config)  # checks all that can be checked before work starts

    import torch

    from ntl import models, runs

    models.find(parts.model)
    torch.set_num_threads(1 if one_thread else parts.train.threads or torch.get_num_threads())
    paths = {name: Path(path) for name, path in config["paths"].items()}
    prepared = parts.dataset.prepare(paths["data"])
    identity = runs.run_id(config, prepared.fingerprint, models.fingerprint(parts.model))
    record = runs.Run(config, identity, paths["results"], paths["outputs"])
    todo, status = record.todo(retry=config["retry"]), record.status()
    if todo == "skip":
        log.info("%s: skip, it is %s%s", identity, status, "; retry=true runs it again" if status == "failed" else "")
        return
    log.info("%s: %s", identity, todo)
    try:
        with record.lease(retry=config["retry"]):
            execute_or_fail(config, parts, prepared, record)
    except (runs.RunBusy, runs.RunDone) as reason:
        log.info("%s: skip, %s", identity, reason)
        return
    log.info("%s: recorded in %s", identity, record.folder)


def execute_or_fail(config: Mapping[str, Any], parts: Parts, prepared: PreparedData, record: Run) -> None:
    """Execute; a run that cannot go on is recorded as failed with its reason, and other runs go on."""
    from ntl import models, runs

    try:
        execute(config, parts, prepared, record)
    except (runs.RecordNotWritten, runs.LeaseLost, models.NotAvailable):
        raise  # nothing can be recorded, or it is another process's to record, or another time it may be there
    except Exception as error:
        record.fail(error)
        log.error("%s: failed: %s", record.id, error)
        raise


def execute(config: Mapping[str, Any], parts: Parts, prepared: PreparedData, record: Run) -> None:
    """Train, answer, score, record."""
    import torch

    from ntl import data as layouts
    from ntl import evaluation, models, saving, training
    from ntl.predictors import trivial_answers

    quiet_library()
    rows = {split: prepared.rows(split) for split in prepared.splits}
    tests = {split: rows[split][: parts.eval.examples] for split in ("validation", *parts.dataset.test_splits)}

    # Numbers, model and loss.
    tokenizer = models.tokenizer_source(parts.model, rows["train"])
    encoding = parts.encoding(tokenizer)
    encoding.fit(rows)
    model = models.build(parts.model, encoding, config["seed"])
    model.to("cuda" if torch.cuda.is_available() and parts.train.device == "auto" else "cpu")
    objective = parts.objective(numbers=encoding.numbers)
    layout = layouts.layout_for(model.config.is_encoder_decoder, encoding, parts.model.loss_on)
    encoded = partial(layouts.EncodedDataset, encoding=encoding, question_tokens=parts.model.question_tokens)
    train_data = encoded(rows["train"])
    validation = encoded(rows["validation"][: parts.train.eval_examples])
    test_data = {split: encoded(tests[split]) for split in tests}
    limit = train_data.longest_answer() + parts.eval.margin
    counted = {"data": encoding.take_report()}  # such as numbers that were rounded
    if cut := {split: data.cut for split, data in {"train": train_data, **test_data}.items() if data.cut}:
        counted["questions cut"] = cut
    everything = {"train": train_data, "validation, while training": validation, **test_data}
    evaluation.check_lengths(model.config, layout, everything, limit)

    def answers(state: str) -> dict[str, evaluation.Answers]:
        given = {
            split: evaluation.answer(model, encoding, layout, data, parts.eval, limit, f"{record.id}: {state}, {split}")
            for split, data in test_data.items()
        }
        counted[state] = encoding.take_report()
        return given

    # The untouched model is scored too: what training adds is a difference.
    answered = {"untrained": answers("untrained")} if parts.eval.untrained else {}

    folder = record.work / "checkpoints"
    with parts.tracker as tracker:
        tracker.start(record.id, config, training.history(folder), record.work)
        trained = training.train(
            model,
            layout,
            objective,
            train_data,
            validation,
            parts.train,
            config["seed"],
            folder,
            tell=tracker.log,
            title=record.id,
        )
        start = time.perf_counter()
        answered["trained"] = answers("trained")
        evaluation_seconds = time.perf_counter() - start

        # The trivial predictors are scored on the same path as the model.
        kind = parts.dataset.answers
        constants = trivial_answers((row["answer"] for row in rows["train"]), kind)
        trivial = {
            state: {split: evaluation.constant(text, tests[split]) for split in tests}
            for state, text in constants.items()
        }
        scores = {
            (state, split): evaluation.score(given, tests[split], kind=kind, fill=constants.get("median"))
            for state, splits in (answered | trivial).items()
            for split, given in splits.items()
        }
        metrics = {state: {split: scores[state, split].metrics for split in tests} for state in answered | trivial}
        tracker.finish(metrics["trained"])

    gpu = torch.cuda.is_available()
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
            "name": config["dataset"]["name"],
            "fingerprint": prepared.fingerprint,
            "files": {name: entry["sha256"] for name, entry in prepared.manifest["files"].items()},
            "sizes": prepared.manifest["sizes"],
        },
        "model": models.describe(model, parts.model)
        | {
            "best_step": trained.best_step,
            "max_new_tokens": limit,
            "encoding": {when: counts for when, counts in counted.items() if counts},
        },
        "notes": sorted(
            f"{state}, {split}, {group}: {name} is undefined: {why}"
            for (state, split), score in scores.items()
            for group, notes in score.notes.items()
            for name, why in notes.items()
        ),
    }
    predictions = (
        {"state": state, "split": split, "index": index, "text": text, "truncated": cut}
        for state, splits in answered.items()
        for split, given in splits.items()
        for index, (text, cut) in enumerate(zip(given.texts, given.truncated, strict=True))
    )
    saving.save(record.work / "model", saving.Trained(model, encoding, layout, parts.eval, limit), parts.model.loss_on)
    record.finish(fields, trained.history, predictions)
    training.remove_checkpoints(folder)


def quiet_library() -> None:
    """Keep transformers from telling of what is as it should be, and from progress bars of reading weights."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def check(arguments: Sequence[str]) -> None:
    """Check every run that a command line names before the first one starts.

    Raises:
        ConfigurationError: for the first that cannot be run.
    """
    if any(argument.startswith("-") and argument not in ("-m", "--multirun") for argument in arguments):
        return  # --help, --cfg and the like start no run
    if (processes := os.environ.get("WORLD_SIZE", "1")) != "1":
        # One of them would hold the run's lease and wait for the others, which would skip what is held.
        raise configuration.ConfigurationError(
            f"WORLD_SIZE: got {processes} (set by torchrun and the like), expected 1: a run is one process. Start it "
            "with python run.py; several runs at a time: hydra/launcher=joblib or slurm"
        )
    configs = configuration.compose_all(arguments)
    configuration.check_launcher(arguments)
    from experiments.parts import instantiate
    from ntl import models

    for config in configs:
        models.find(instantiate(config).model)


def predict(arguments: Sequence[str]) -> None:
    """`predict run=<id or folder> QUESTION …`: let a trained model answer, one answer a line."""
    named = dict(argument.split("=", 1) for argument in arguments if argument.startswith(("run=", "paths.outputs=")))
    questions = [argument for argument in arguments if not argument.startswith(("run=", "paths.outputs="))]
    if "run" not in named or not questions:
        raise configuration.ConfigurationError(
            "predict needs a trained run and at least one question, as in\n"
            '  python run.py predict run=arithmetic-t5_nano-ntl_was-s0-1a2b3c4d "What is 3 + 4?"'
        )
    outputs = Path(named.get("paths.outputs", "outputs")) / "runs"
    trained = {path.parent.name: path for path in outputs.glob("*/*/model")}
    folder = trained.get(named["run"], Path(named["run"]))
    if not folder.is_dir():
        raise configuration.ConfigurationError(
            configuration.did_you_mean("run", named["run"], trained)
            if trained
            else f"got run={named['run']}, and no trained model lies below {outputs}; train one with python run.py"
        )

    from ntl import evaluation, saving
    from ntl.data import EncodedDataset

    quiet_library()
    nested = folder / "model"
    model, encoding, layout, settings, limit = saving.load(nested if nested.is_dir() else folder)
    data = EncodedDataset([{"question": question, "answer": ""} for question in questions], encoding)
    for text in evaluation.answer(model, encoding, layout, data, settings, limit).texts:
        print(text)


def is_ours(error: Exception) -> bool:
    """Whether an error's text says all there is to say; others are shown with where they came from."""
    return isinstance(error, HydraException) or type(error).__module__.partition(".")[0] in OURS


if __name__ == "__main__":
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        if sys.argv[1:2] == ["predict"]:
            predict(sys.argv[2:])
        else:
            check(sys.argv[1:])
            main()
    except KeyboardInterrupt as stop:
        print(f"stopped: {stop or 'interrupted'}; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not is_ours(error):
            raise
        sys.exit(f"error: {error}")
