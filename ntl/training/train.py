"""Training: transformers' Trainer with the objective's loss in it.

Three things are overridden. `compute_loss` asks the objective; `_get_num_items_in_batch` counts number tokens beside
label tokens over the whole accumulated batch of all processes, so that a mean over number positions is the same however
a batch is divided; and every process collates its own part of a batch, where the library would fill the last one up
with rows of the first. All else (loop, optimizer, schedule, checkpoints, resuming) is the library's.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback, TrainerState
from transformers.trainer_utils import SchedulerType

from ntl import distributed, options
from ntl.data import EncodedDataset, Layout, model_inputs, without_labels
from ntl.losses.objectives import Counts, Objective
from ntl.models import linear_head
from ntl.settings import TrainSettings
from ntl.text import suggestion
from ntl.training import checkpoints
from ntl.training.stopping import SIGNALS, Stopped, catch_up

log = logging.getLogger(__name__)

# Options of transformers' `fsdp_config`, and what they may be. Others contradict what is done here (checkpoints hold
# the whole model, and each process has loaded it), do not work (activation_checkpointing: T5's attention computes
# another number of tensors anew than it saved), or cannot be tried without GPUs (cpu_offload).
FSDP = {"version": (2,), "reshard_after_forward": (True, False)}


class NotFinite(ArithmeticError):
    """The loss became NaN or infinite."""


@dataclass
class TrainResult:
    """What a training came to: `history` has one row per logged step, each part of the loss in a column."""

    model: PreTrainedModel  # the one that was given, or a whole one where that was sharded over processes
    history: list[dict[str, float]]
    steps: int
    best_step: int | None
    seconds: float  # of this process; the steps before a resume are not in it
    steps_per_second: float


class ObjectiveTrainer(Trainer):
    """A Trainer whose loss is an `Objective`, with the parts of the loss in its log (`ce`, `ntl`, `eval_ce`, …)."""

    def __init__(
        self, objective: Objective, gradient_norms_every: int | None = None, linear: bool = False, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.objective = objective
        self.gradient_norms_every = gradient_norms_every
        self.linear = linear  # the model's forward returns the loss (LinearHead)
        self.loss_is_scaled_for_ga = True  # parts are sums over the whole batch's counts already
        self._meter = self._new_meter()

    def _new_meter(self) -> _Meter:
        return _Meter(self.objective.number_parts)

    def _get_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        loader = super()._get_dataloader(*arguments, **options)
        if isinstance(loader.batch_sampler, BatchSamplerShard):  # on several processes: each takes its part by itself
            loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0
        return loader

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Counts | None:
        if not batch_samples:
            return None
        counts = [self.objective.count(batch["labels"]) for batch in batch_samples]
        totals = torch.stack([torch.stack([c.labels, c.numbers]) for c in counts]).sum(0).to(device)
        return Counts(*distributed.summed(totals))

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Counts | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        measures = model.training and self._measures_gradients()
        terms: dict[str, torch.Tensor] = {}
        if self.linear:
            outputs: Any = {}  # no logits
            options = {"labels": inputs["labels"], "counts": num_items_in_batch, "terms": measures}
            parts = model(**model_inputs(inputs), **options)
            if measures:
                parts, terms = parts
        else:
            outputs = model(**model_inputs(inputs))
            parts = self.objective(outputs, inputs, num_items_in_batch)
            if measures:
                terms = self.objective.terms(outputs, inputs, num_items_in_batch)
        if model.training and self._meter.since is None:
            self._meter.since = self.state.global_step  # which is not 0 where a run goes on
        self._meter.add(parts.parts, None if self.model.training else num_items_in_batch)
        if measures:
            self._meter.add(_gradient_norms(terms, model), None)
        if not model.training:
            loss = distributed.summed(parts.total.clone())
        else:
            # Gradients are averaged over processes; the counts are of all of them: so sum instead.
            loss = parts.total * distributed.size()
        return (loss, outputs) if return_outputs else loss

    def _measures_gradients(self) -> bool:
        every = self.gradient_norms_every
        return every and self.state.global_step % every == 0 and self.accelerator.sync_gradients

    def evaluation_loop(self, *arguments: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        training, self._meter = self._meter, self._new_meter()
        if distributed.size() > 1:
            self.gather_function = self._of_all
        try:
            output = super().evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **options)
            for name, value in self._meter.means().items():
                output.metrics[f"{metric_key_prefix}_{name}"] = value
        finally:
            self._meter = training
        return output

    def _of_all(self, losses: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, once for each of its rows: what the library would gather, but that it is summed."""
        state = self.accelerator.gradient_state
        return losses[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else losses

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._meter.means(steps=self.state.global_step - (self._meter.since or 0))
            self._meter = self._new_meter()
        for name, kind in (("loss", "loss"), (f"eval_{self.objective.selection}", "validation loss")):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFinite(
                    f"the {kind} became {logs[name]} by step {self.state.global_step}; a lower train.learning_rate, "
                    "a longer train.warmup_steps or a smaller loss.weight may keep it finite"
                )
        super().log(logs, start_time)


class _Meter:
    """Sums of the parts of a loss: over the steps since the last log, or over a validation's tokens."""

    def __init__(self, number_parts: tuple[str, ...]) -> None:
        self.number_parts = number_parts
        self.since: int | None = None  # steps that were done before the first of these
        self.sums: dict[str, torch.Tensor] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.occasions: dict[str, int] = {}

    def add(self, parts: Mapping[str, torch.Tensor], counts: Counts | None) -> None:
        for name, value in parts.items():
            weight = 1.0 if counts is None else (counts.numbers if name in self.number_parts else counts.labels)
            self.sums[name] = self.sums.get(name, 0.0) + value.detach() * weight
            self.weights[name] = self.weights.get(name, 0.0) + weight
            self.occasions[name] = self.occasions.get(name, 0) + 1

    def means(self, steps: int | None = None) -> dict[str, float]:
        means = {}
        for name, total in self.sums.items():
            if not name.startswith("grad_"):  # which are of all processes
                total = distributed.summed(total)
            if steps is None:  # a validation: means over tokens
                weight = float(self.weights[name])
            else:  # training: the micro-batches of a step add up to that step's mean; gradient norms are averaged
                weight = self.occasions[name] if name.startswith("grad_") else steps
            if weight:
                means[name] = float(total) / weight
        return means


def _gradient_norms(terms: Mapping[str, torch.Tensor], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Norms of the gradient of each term of the total, λ included, over all parameters; and their ratio to CE's."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms = {}
    for name, term in terms.items():
        gradients = torch.autograd.grad(
            term, parameters, retain_graph=True, allow_unused=True, materialize_grads=distributed.size() > 1
        )
        squares = [distributed.summed(g).float().square().sum() for g in gradients if g is not None]
        norms[f"grad_{name}"] = torch.stack(squares).sum().sqrt() if squares else torch.zeros(())
    if len(norms) > 1 and "grad_ce" in norms:
        for name in set(norms) - {"grad_ce"}:
            norms[f"{name}_over_ce"] = norms[name] / norms["grad_ce"].clamp_min(1e-30)
    return norms


def _find_best(state: TrainerState, folder: Path) -> None:
    """The best checkpoint lies where the others lie, which may not be where it was written."""
    if state.best_global_step:
        state.best_model_checkpoint = str(folder / f"checkpoint-{state.best_global_step}")


class _Seal(TrainerCallback):
    """Seals every checkpoint once it is whole, and knows the best one by its step, wherever the folder now lies."""

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        _find_best(state, Path(args.output_dir))

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        distributed.barrier()  # until each process has written its part
        if state.is_world_process_zero:
            checkpoints.seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _StopOnSignal(TrainerCallback):
    """On SIGINT, SIGTERM or a scheduler's notice to any of the processes: finish the step, save, and stop."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is not None:
            if number == signal.SIGINT:  # Ctrl-C twice: stop at once
                raise KeyboardInterrupt
            return  # schedulers send the same signal to a job's processes and, through its launcher, once more
        self.received = number
        log.warning("%s: saving a checkpoint, then stopping", signal.Signals(number).name)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        self.received = distributed.highest(self.received or 0) or None
        if self.received is not None:
            control.should_log = control.should_save = control.should_training_stop = True


class _Tell(TrainerCallback):
    """Hands every logged row to `tell(step, values)`."""

    def __init__(self, tell: Callable[[int, dict[str, float]], None]) -> None:
        self.tell = tell

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.tell(state.global_step, _numbers(logs))


class _Bar(ProgressCallback):
    """The library's progress bar, with a title and the loss beside it instead of a line for every logged row."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **rest: Any) -> None:
        super().on_train_begin(args, state, control, **rest)
        if self.training_bar is not None:
            self.training_bar.set_description(self.title)

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and "loss" in logs:
            self.training_bar.set_postfix(loss=f"{logs['loss']:.4g}", refresh=False)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """No bar for validations: they are short, and several runs may share a terminal."""


def check(settings: TrainSettings) -> None:
    """Raise a ValueError for settings that cannot be trained with, before any work starts."""
    options.check(settings, "train")
    schedules = [str(schedule.value) for schedule in SchedulerType]
    if settings.schedule not in schedules:
        raise ValueError(f"train.schedule: got '{settings.schedule}', {suggestion(settings.schedule, schedules)}")
    for name, value in settings.fsdp.items():
        if name not in FSDP:
            raise ValueError(f"train.fsdp: got '{name}', expected some of {', '.join(FSDP)}")
        if value not in FSDP[name]:
            expected = " or ".join(str(v).lower() for v in FSDP[name])
            raise ValueError(f"train.fsdp.{name}: got {value}, expected {expected}")
    if settings.fsdp and settings.loss_implementation == "linear":
        raise ValueError("train.loss_implementation: got 'linear' with train.fsdp, expected auto, plain or fused")
    if settings.eval_every > settings.steps:
        raise ValueError(
            f"train.eval_every: got {settings.eval_every} with train.steps={settings.steps}; "
            "a run must be validated at least once"
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
        fsdp=True if _is_sharded(settings) else None,
        fsdp_config=dict(settings.fsdp) if _is_sharded(settings) else None,
        eval_strategy="steps",
        eval_steps=settings.eval_every,
        # A checkpoint at every validation, so that the best one is on disk. Rows are logged at each of them, so that
        # no part of the loss's running means is lost when a run resumes.
        save_strategy="steps",
        save_steps=settings.eval_every,
        save_total_limit=3,
        logging_steps=_logging_steps(settings),
        load_best_model_at_end=settings.keep_best and not _is_sharded(settings),  # that is done on a whole model
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
) -> TrainResult:
    """Train `model` in place, from its last whole checkpoint below `folder` where there is one.

    Several processes that have joined (`ntl.distributed`) train it together: of each batch of `batch_size` rows every
    one has its part. With `settings.fsdp` each holds a part of the model only, and the whole one is in the result.

    Args:
        tell: called with (step, values) for every row that is logged.
        title: of the progress bar.

    Raises:
        Stopped: the process was asked to stop; a checkpoint was saved.
        NotFinite: the loss became NaN or infinite.
    """
    resume = distributed.decided(lambda: checkpoints.last_whole(folder))
    before = 0 if resume is None else int(resume.name.rpartition("-")[2])
    sharded = _is_sharded(settings)
    whole = copy.deepcopy(model).cpu() if sharded else model  # sharding is done to the model itself
    device = model.device
    implementation = _loss_implementation(model, layout, objective, data, settings)
    objective = objective.with_implementation("fused" if implementation == "fused" else "plain")
    head = linear_head.LinearHead(model, objective) if implementation == "linear" else contextlib.nullcontext()
    stop = _StopOnSignal()
    norms = settings.eval_every if settings.gradient_norms_every is None else settings.gradient_norms_every
    with stop, head:
        args = arguments(settings, objective, seed, folder)
        if sharded and args.device.type == "cpu":
            # accelerate shards on GPUs and the like alone, though PyTorch can on any device: call these processes such
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        trainer = ObjectiveTrainer(
            objective=objective,
            gradient_norms_every=0 if sharded else norms,  # no process has a whole gradient there
            linear=implementation == "linear",
            model=model,
            args=args,
            train_dataset=data,
            eval_dataset=validation,
            data_collator=partial(_part, layout, distributed.rank(), distributed.size()),
            callbacks=[_Seal(), stop, _Tell(tell)],
        )
        if sharded:
            _shard_tied(model, trainer.accelerator.state.fsdp_plugin)
        if trainer.pop_callback(ProgressCallback) is not None:
            trainer.add_callback(_Bar(title))
        start = time.perf_counter()
        if resume is not None:
            log.info("going on from step %d", before)
        if before < settings.steps:
            if distributed.rank():
                torch.manual_seed(seed + distributed.rank())  # else all processes would drop out alike
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
            if sharded:
                log.info("each process held %.2f of the weights", distributed.held(model))
        last = folder / f"checkpoint-{settings.steps}"
        if sharded and last.is_dir():
            _fill(whole, trainer, last, settings.keep_best)
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
        history=[_numbers(row) for row in trainer.state.log_history if "train_runtime" not in row],
        steps=trainer.state.global_step,
        best_step=trainer.state.best_global_step,
        seconds=seconds,
        steps_per_second=(trainer.state.global_step - before) / seconds if seconds else 0.0,
    )


def _shard_tied(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Shard the modules that share the input embedding's weight as one unit, which PyTorch asks of tied weights.

    accelerate, which shards all else, would put T5's, which are in four modules, into several.
    """
    weight = model.get_input_embeddings().weight
    tied = [module for module in model.modules() if getattr(module, "weight", None) is weight]
    policy = plugin.mixed_precision_policy or MixedPrecisionPolicy()
    fully_shard(tied, reshard_after_forward=False, mp_policy=policy, offload_policy=plugin.cpu_offload)


def _is_sharded(settings: TrainSettings) -> bool:
    return bool(settings.fsdp) and distributed.size() > 1


def _restore(trainer: Trainer, checkpoint: Path) -> None:
    """Leave trainer and model as training left them that ended with this checkpoint.

    Asked to resume there, the library would take one more step.
    """
    trainer.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
    _find_best(trainer.state, checkpoint.parent)
    trainer._load_from_checkpoint(str(checkpoint))
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint is not None:
        trainer._load_best_model()


def _fill(whole: PreTrainedModel, trainer: Trainer, checkpoint: Path, keep_best: bool) -> None:
    """As `_restore`, into a whole model, from a checkpoint of a sharded one."""
    trainer.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
    _find_best(trainer.state, checkpoint.parent)
    best = trainer.state.best_model_checkpoint if keep_best else None
    path = Path(best or checkpoint) / f"{FSDP_MODEL_NAME}.bin"
    whole.load_state_dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))


def _loss_implementation(
    model: PreTrainedModel, layout: Layout, objective: Objective, data: EncodedDataset, settings: TrainSettings
) -> str:
    """Resolve how this run computes its loss, by the size of the first batch, and tell."""
    labels = layout.train_batch([data[index] for index in range(min(settings.batch_size, len(data)))])["labels"]
    implementation = linear_head.resolve_implementation(
        settings.loss_implementation, model, objective, labels.numel(), sharded=_is_sharded(settings)
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
    return [_numbers(row) for row in json.loads((resume / checkpoints.STATE).read_text())["log_history"]]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The values of a row that depend on the run alone: timings belong to the record's own section."""
    timings = ("runtime", "_per_second", "total_flos", "preparation_time")
    return {k: v for k, v in row.items() if isinstance(v, int | float) and not k.endswith(timings)}
