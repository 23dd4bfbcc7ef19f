"""Train and score one model, or with -m every arm and seed of an experiment; `python run.py --help` says how.

The path of a run, from top to bottom: configuration → data → encoding and model → objective → training → answers →
scores → record. What each step does is in the module it calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from experiments.config import compose as configuration
from experiments.config.paths import in_repository
from ntl import distributed
from ntl.runs import faults
from ntl.training.stopping import Stopped, requeued_when_stopped

if TYPE_CHECKING:
    from data_prep.base import PreparedData
    from experiments.config.instantiate import Parts
    from ntl.runs.run import Run

FIRST = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun has started, which find the same errors
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
        distributed.join()
        try:
            run(configuration.compose(list(job.overrides.task)), one_thread=at_once)
        except Exception as error:
            faults.forget(error)
            if distributed.size() == 1:
                raise
            # It ends here and now: the others may be waiting for this process, and torchrun will end them.
            sys.exit(f"error in process {distributed.rank()} of {distributed.size()}: {error}")


def run(config: Mapping[str, Any], one_thread: bool = False) -> None:
    """Do the run that `config` describes and record it, unless that has been done."""
    from experiments.config.instantiate import instantiate

    parts = instantiate(config)  # checks all that can be checked before work starts

    import torch

    from ntl import models
    from ntl.runs import run as runs

    models.find(parts.model)
    torch.set_num_threads(1 if one_thread else parts.train.threads or torch.get_num_threads())
    paths = {name: Path(path) for name, path in config["paths"].items()}
    prepared = distributed.in_turn(lambda: parts.dataset.prepare(paths["data"]))
    identity = runs.run_id(config, prepared.fingerprint, models.fingerprint(parts.model))
    record = runs.Run(config, identity, paths["outputs"])
    wanted = {"retry": config["retry"], "force": config["force"]}
    todo, status = distributed.decided(lambda: (record.todo(**wanted), record.status()))
    if todo == "skip":
        again = {"failed": "retry", "finished": "force"}[status]
        log.info("%s: skip, it is %s in %s; %s=true runs it again", identity, status, record.folder, again)
        return
    log.info("%s: %s", identity, todo)
    published = paths["results"] / "runs" / record.folder.parent.name / identity
    if (published / "record.json").exists():
        log.info("%s: a published record exists in %s; this run is recorded apart from it", identity, published)
    with contextlib.ExitStack() as lease:
        refused = None
        try:
            if distributed.is_first():
                lease.enter_context(record.lease(**wanted))
        except (runs.RunBusy, runs.RunDone) as reason:
            refused = str(reason)
        if reason := distributed.decided(lambda: refused):
            log.info("%s: skip, %s", identity, reason)
            return
        execute_or_fail(config, parts, prepared, record)
    log.info("%s: recorded in %s", identity, record.folder)


def execute_or_fail(config: Mapping[str, Any], parts: Parts, prepared: PreparedData, record: Run) -> None:
    """Execute; a run that cannot go on is recorded as failed with its reason, and other runs go on."""
    from ntl import models
    from ntl.runs import run as runs

    try:
        with faults.explained(config, record.folder):
            execute(config, parts, prepared, record)
    except (faults.DiskFull, runs.RecordNotWritten, runs.LeaseLost, models.NotAvailable) as error:
        # Nothing can be recorded, or it is another process's to record, or another time there is room, or the model.
        log.error("%s: not recorded: %s", record.id, error)
        raise
    except (Exception, Stopped) as error:
        if not distributed.is_first():
            if not isinstance(error, Stopped):
                distributed.tell(runs.reason_of(error))
            raise
        reason = distributed.told() if distributed.size() > 1 else None
        if reason is None and isinstance(error, Stopped):
            raise
        if reason is None and distributed.lost(error):
            raise ConnectionError(
                f"another process of {record.id} has ended; the same command goes on from the last checkpoint"
            ) from error
        record.fail(reason or error)
        log.error("%s: failed: %s", record.id, reason["message"] if reason else error)
        raise


def execute(config: Mapping[str, Any], parts: Parts, prepared: PreparedData, record: Run) -> None:
    """Train, answer, score, record."""
    import torch

    from ntl import data as layouts
    from ntl import models
    from ntl import predict as saving
    from ntl.evaluation import answer as evaluation
    from ntl.evaluation.baselines import trivial_answers
    from ntl.runs import tracking
    from ntl.training import train as training

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
        counted[state] = dict(sum(map(Counter, distributed.gathered(encoding.take_report())), Counter()))
        return given

    # The untouched model is scored too: what training adds is a difference.
    answered = {"untrained": answers("untrained")} if parts.eval.untrained else {}

    folder = record.folder / "checkpoints"
    with parts.tracker if distributed.is_first() else tracking.NoTracker() as tracker:
        tracker.start(record.id, config, distributed.decided(lambda: training.history(folder)), record.folder)
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
        model = trained.model
        start = time.perf_counter()
        answered["trained"] = answers("trained")
        evaluation_seconds = time.perf_counter() - start
        if not distributed.is_first():
            return  # the first one scores, saves and records

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
    saving.save(
        record.folder / "model", saving.Trained(model, encoding, layout, parts.eval, limit), parts.model.loss_on
    )
    record.finish(fields, trained.history, predictions)
    training.remove_checkpoints(folder)


def quiet_library() -> None:
    """Keep the libraries from telling of what is as it should be, and from progress bars of reading weights."""
    import transformers

    logging.getLogger("accelerate").setLevel(logging.WARNING)  # each file of each checkpoint of a sharded model
    # No model here changes what a block has returned in place; the tests compare gradients with those of a whole model.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def check(arguments: Sequence[str]) -> None:
    """Check every run that a command line names before the first one starts.

    Raises:
        ConfigurationError: for the first that cannot be run.
    """
    configuration.check_words(arguments)
    if any(argument.startswith("-") and argument not in configuration.SWEEPS for argument in arguments):
        return  # --help, --cfg and the like start no run
    if distributed.started() > 1 and (lacking := [n for n in distributed.VARIABLES if n not in os.environ]):
        raise configuration.ConfigurationError(
            f"WORLD_SIZE: got {distributed.started()} processes for one run, without {', '.join(lacking)}: start them "
            "with torchrun, as in torchrun --nproc-per-node 2 run.py …"
        )
    if distributed.started() > 1 and any(a.startswith("hydra/launcher=") for a in arguments):
        raise configuration.ConfigurationError(
            f"hydra/launcher: got one beside {distributed.started()} processes that were started for each run "
            "(WORLD_SIZE, by torchrun or the like), expected none: they do the runs of a sweep one after another"
        )
    configs = configuration.compose_all(arguments)
    configuration.check_launcher(arguments)
    from experiments.config.instantiate import instantiate
    from ntl import models

    for config in configs:
        models.find(instantiate(config).model)


def predict(arguments: Sequence[str]) -> None:
    """`predict run=<id or folder> QUESTION …`: let a trained model answer, one answer a line."""
    named = dict(argument.split("=", 1) for argument in arguments if argument.startswith(("run=", "paths.outputs=")))
    questions = [argument for argument in arguments if not argument.startswith(("run=", "paths.outputs="))]
    if dashed := next((question for question in questions if question.startswith(("--run", "--paths."))), None):
        raise configuration.ConfigurationError(f"got '{dashed}', expected run=<id or folder>, without dashes")
    if "run" not in named or not questions:
        raise configuration.ConfigurationError(
            "predict needs a trained run and at least one question, as in\n"
            '  python run.py predict run=arithmetic-t5_nano-ntl_was-s0-1a2b3c4d "What is 3 + 4?"'
        )
    outputs = Path(named.get("paths.outputs", in_repository("outputs"))) / "runs"
    trained = {path.parent.name: path for path in outputs.glob("*/*/model")}
    folder = trained.get(named["run"], Path(named["run"]))
    if not folder.is_dir():
        raise configuration.ConfigurationError(
            configuration.did_you_mean("run", named["run"], trained)
            if trained
            else f"got run={named['run']}, and no trained model lies below {outputs}; train one with python run.py"
        )

    from ntl import predict as saving
    from ntl.data import EncodedDataset
    from ntl.evaluation import answer as evaluation

    quiet_library()
    nested = folder / "model"
    model, encoding, layout, settings, limit = saving.load(nested if nested.is_dir() else folder)
    data = EncodedDataset([{"question": question, "answer": ""} for question in questions], encoding)
    for text in evaluation.answer(model, encoding, layout, data, settings, limit).texts:
        print(text)


def is_ours(error: Exception) -> bool:
    """Whether an error's text says all there is to say; others are shown with where they came from."""
    return isinstance(error, HydraException) or type(error).__module__.partition(".")[0] in OURS


def quiet(folder: str) -> list[str]:
    """Overrides for all processes of a run but the first: they log what is amiss, and Hydra's files go to `folder`."""
    places = [f"hydra.{mode}.dir={folder}" for mode in ("run", "sweep")]
    return [*places, "hydra/job_logging=stdout", "hydra.job_logging.root.level=WARNING", "hydra/hydra_logging=none"]


if __name__ == "__main__":
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # let errors through to here
    try:
        if sys.argv[1:2] == ["predict"]:
            predict(sys.argv[2:])
        else:
            check(sys.argv[1:])
            with contextlib.ExitStack() as files:
                if not FIRST:
                    sys.argv += quiet(files.enter_context(tempfile.TemporaryDirectory()))
                main()
            distributed.leave()
    except KeyboardInterrupt as stop:
        if FIRST:
            print(f"stopped: {stop or 'interrupted'}; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not FIRST:
            time.sleep(distributed.PATIENCE)  # torchrun ends all when one has ended: let the first say it
        fault = faults.named(error)
        if not is_ours(fault):
            raise
        sys.exit(f"error: {fault}" if FIRST else 1)
