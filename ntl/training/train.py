"""Train a model: settings → transformers' arguments → `ObjectiveTrainer` → the best weights and the curves."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import ProgressCallback, TrainerState
from transformers.trainer_utils import SchedulerType

from ntl import distributed, options
from ntl.data import EncodedDataset, Layout, without_labels
from ntl.losses.objectives import Objective
from ntl.models import linear_head
from ntl.models.initialisation import stream_seed
from ntl.settings import TrainSettings
from ntl.text import suggestion
from ntl.training import checkpoints, fsdp
from ntl.training.callbacks import ProgressBar, Seal, StopOnSignal, Tell
from ntl.training.meters import run_values
from ntl.training.stopping import Stopped, catch_up
from ntl.training.trainer import ObjectiveTrainer

log = logging.getLogger(__name__)


@dataclass
class TrainResult:
    """What a training came to: `history` has one row per logged step, each part of the loss in a column."""

    model: PreTrainedModel  # the one that was given, or a whole one where that was sharded over processes
    history: list[dict[str, float]]
    steps: int
    best_step: int | None
    seconds: float  # of this process; the steps before a resume are not in it
    steps_per_second: float


def check(settings: TrainSettings) -> None:
    """Raise a ValueError for settings that cannot be trained with, before any work starts."""
    options.check(settings, "train")
    schedules = [str(schedule.value) for schedule in SchedulerType]
    if settings.schedule not in schedules:
        raise ValueError(f"train.schedule: got '{settings.schedule}', {suggestion(settings.schedule, schedules)}")
    for name, value in settings.fsdp.items():
        if name not in fsdp.OPTIONS:
            raise ValueError(f"train.fsdp: got '{name}', expected some of {', '.join(fsdp.OPTIONS)}")
        if value not in fsdp.OPTIONS[name]:
            expected = " or ".join(str(v).lower() for v in fsdp.OPTIONS[name])
            raise ValueError(f"train.fsdp.{name}: got {value}, expected {expected}")
    if settings.fsdp and settings.loss_implementation == "linear":
        raise ValueError("train.loss_implementation: got 'linear' with train.fsdp, expected auto, plain or fused")
    if settings.fsdp and settings.answer_examples:
        raise ValueError(
            f"train.answer_examples: got {settings.answer_examples} with train.fsdp, expected 0: a sharded model "
            "answers nothing while it is trained"
        )
    if settings.schedule_options and settings.schedule in ("constant", "constant_with_warmup"):
        raise ValueError(
            f"train.schedule_options: got {settings.schedule_options}, and train.schedule={settings.schedule} has none"
        )
    if settings.steps % settings.eval_every:
        raise ValueError(
            f"train.steps: got {settings.steps}, expected a multiple of train.eval_every={settings.eval_every}, "
            "so that the last weights are validated too"
        )


def arguments(settings: TrainSettings, objective: Objective, seed: int, folder: Path) -> TrainingArguments:
    """The library's training arguments for these settings."""
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=2 * settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        lr_scheduler_kwargs=settings.schedule_options or None,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        # accelerate would take the lack of GPUs on several processes for a mistake
        use_cpu=settings.device == "cpu" or (distributed.size() > 1 and not torch.cuda.is_available()),
        accelerator_config={"even_batches": False},
        fsdp=True if fsdp.is_sharded(settings) else None,
        fsdp_config=dict(settings.fsdp) if fsdp.is_sharded(settings) else None,
        eval_strategy="steps",
        eval_steps=settings.eval_every,
        # A checkpoint at every validation, so that the best one is on disk. Rows are logged at each of them, so that
        # no part of the loss's running means is lost when a run resumes.
        save_strategy="steps",
        save_steps=settings.eval_every,
        save_total_limit=3,
        logging_steps=_logging_steps(settings),
        load_best_model_at_end=settings.keep_best and not fsdp.is_sharded(settings),  # that is done on a whole model
        metric_for_best_model=f"eval_{objective.selection}",
        greater_is_better=False,
        prediction_loss_only=True,
        remove_unused_columns=False,
        label_names=["labels"],  # which the library would look for in the signature of the model's forward
        ddp_find_unused_parameters=False,  # every parameter has its part in the loss of every row
        dataloader_num_workers=settings.workers,
        dataloader_pin_memory=torch.cuda.is_available() and settings.device == "auto",
        logging_nan_inf_filter=False,  # which would log a mean of earlier losses where the loss is NaN
        log_level="error",  # which the library would otherwise set anew in all processes but the first
        log_level_replica="error",
        report_to="none",
        seed=seed,
        data_seed=seed,
        disable_tqdm=None,
    )


def _part(layout: Layout, rank: int, size: int, items: Sequence[Any]) -> dict[str, torch.Tensor]:
    """One process's part of a batch; where there are more processes than rows, a row without labels."""
    mine = items[rank::size]
    return layout.train_batch(mine) if mine else without_labels(layout.train_batch(items[:1]), layout)


def _logging_steps(settings: TrainSettings) -> int:
    """The largest step between logs that divides `eval_every` and is at most `log_every`."""
    return max(n for n in range(1, settings.log_every + 1) if settings.eval_every % n == 0)


def train(
    model: PreTrainedModel,
    layout: Layout,
    objective: Objective,
    data: EncodedDataset,
    validation: EncodedDataset,
    settings: TrainSettings,
    seed: int,
    folder: Path,
    tell: Callable[[int, dict[str, float]], None] = lambda step, values: None,
    title: str = "training",
    measure: Callable[[], Mapping[str, float]] | None = None,
) -> TrainResult:
    """Train `model` in place, from its last whole checkpoint below `folder` where there is one.

    Several processes that have joined (`ntl.distributed`) train it together: of each batch of `batch_size` rows every
    one has its part. With `settings.fsdp` each holds a part of the model only, and the whole one is in the result.

    Args:
        tell: called with (step, values) for every row that is logged.
        title: of the progress bar.
        measure: called at each validation; what it returns is in that validation's row, with the prefix `eval_`.

    Raises:
        Stopped: the process was asked to stop; a checkpoint was saved.
        NotFinite: the loss became NaN or infinite.
    """
    resume = distributed.decided(lambda: checkpoints.last_whole(folder))
    before = 0 if resume is None else int(resume.name.rpartition("-")[2])
    sharded = fsdp.is_sharded(settings)
    whole = copy.deepcopy(model).cpu() if sharded else model  # sharding is done to the model itself
    device = model.device
    implementation = _loss_implementation(model, layout, objective, data, settings)
    objective = objective.with_implementation("fused" if implementation == "fused" else "plain")
    head = linear_head.LinearHead(model, objective) if implementation == "linear" else contextlib.nullcontext()
    stop = StopOnSignal()
    norms = settings.eval_every if settings.gradient_norms_every is None else settings.gradient_norms_every
    with stop, head:
        args = arguments(settings, objective, seed, folder)
        if sharded:
            fsdp.shard_on(args.device)
        trainer = ObjectiveTrainer(
            objective=objective,
            gradient_norms_every=0 if sharded else norms,  # no process has a whole gradient there
            linear=implementation == "linear",
            measure=measure,
            model=model,
            args=args,
            train_dataset=data,
            eval_dataset=validation,
            data_collator=partial(_part, layout, distributed.rank(), distributed.size()),
            callbacks=[Seal(), stop, Tell(tell)],
        )
        if sharded:
            fsdp.shard_tied(model, trainer.accelerator.state.fsdp_plugin)
        if trainer.pop_callback(ProgressCallback) is not None:
            trainer.add_callback(ProgressBar(title))
        start = time.perf_counter()
        if resume is not None:
            log.info("going on from step %d", before)
        if before < settings.steps:
            if distributed.rank():  # else all processes would drop out alike; seed + rank is another run's seed
                torch.manual_seed(stream_seed(seed, "dropout", str(distributed.rank())))
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
            if sharded:
                log.info("each process held %.2f of the weights", fsdp.share_of_weights(model))
        last = folder / f"checkpoint-{settings.steps}"
        if sharded and last.is_dir():
            fsdp.load_whole(whole, _read_state(trainer, last, settings.keep_best))
        elif before == settings.steps:
            _restore(trainer, last)
    seconds = time.perf_counter() - start
    if stop.received is not None:
        if trainer.state.global_step < settings.steps:
            at = f"stopped at step {trainer.state.global_step} of {settings.steps}"
            raise Stopped(f"{at}; a checkpoint is saved", stop.received)
        catch_up(stop.received)
    return TrainResult(
        model=whole.to(device),
        history=[run_values(row) for row in trainer.state.log_history if "train_runtime" not in row],
        steps=trainer.state.global_step,
        best_step=trainer.state.best_global_step,
        seconds=seconds,
        steps_per_second=(trainer.state.global_step - before) / seconds if seconds else 0.0,
    )


def _restore(trainer: Trainer, last: Path) -> None:
    """Leave trainer and model as they were at the end of the training of which `last` is the last checkpoint.

    Asked to resume there, the library would take one more step.
    """
    best = _read_state(trainer, last, trainer.args.load_best_model_at_end)
    trainer._load_from_checkpoint(str(last))
    if best != last:
        trainer._load_best_model()


def _read_state(trainer: Trainer, last: Path, keep_best: bool) -> Path:
    """Read the trainer's state from a checkpoint; return the checkpoint of the weights to keep."""
    trainer.state = TrainerState.load_from_json(str(last / checkpoints.STATE))
    checkpoints.locate_best(trainer.state, last.parent)
    best = trainer.state.best_model_checkpoint if keep_best else None
    return Path(best or last)


def _loss_implementation(
    model: PreTrainedModel, layout: Layout, objective: Objective, data: EncodedDataset, settings: TrainSettings
) -> str:
    """Resolve how this run computes its loss, by the size of the first batch, and tell."""
    labels = layout.train_batch([data[index] for index in range(min(settings.batch_size, len(data)))])["labels"]
    implementation = linear_head.resolve_implementation(
        settings.loss_implementation, model, objective, labels.numel(), sharded=fsdp.is_sharded(settings)
    )
    told = {"plain": "the plain functions", "fused": "one pass over the logits", "linear": "blocks of hidden states"}
    log.info(
        "loss computed by %s (train.loss_implementation=%s, batches of about %d labels and %d columns)",
        told[implementation],
        settings.loss_implementation,
        labels.numel(),
        model.config.vocab_size,
    )
    return implementation


def remove_checkpoints(folder: Path) -> None:
    """Remove a recorded run's checkpoints; the weights that answered stay in its saved model."""
    shutil.rmtree(folder, ignore_errors=True)


def history(folder: Path) -> list[dict[str, float]]:
    """The rows logged up to the checkpoint that a run will go on from; empty for a fresh one."""
    resume = checkpoints.last_whole(folder)
    if resume is None:
        return []
    return [run_values(row) for row in json.loads((resume / checkpoints.STATE).read_text())["log_history"]]
