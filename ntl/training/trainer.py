"""transformers' Trainer with an objective's loss in it.

`ntl.integrations.transformers` makes the means independent of how a batch is divided. Here, the parts of the loss are
logged, and `_get_dataloader` leaves the division of a batch to the collator, where the library would fill up the last
batch with rows of the first. Everything else (loop, optimizer, schedule, checkpoints, resuming) is the library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors import safe_open
from torch.utils.data import DataLoader
from transformers import Trainer

from ntl import distributed
from ntl.data import model_inputs
from ntl.integrations.transformers import ObjectiveMixin
from ntl.losses.objectives import Counts, LossParts, Objective
from ntl.models import weights
from ntl.training.meters import GradientNorms, TrainingMeter, ValidationMeter


class NotFinite(ArithmeticError):
    """The loss became NaN or infinite."""


class ObjectiveTrainer(ObjectiveMixin, Trainer):
    """A Trainer whose loss is an `Objective`, with the parts of the loss in its log (`ce`, `ntl`, `eval_ce`, …).

    Args:
        objective: the loss.
        gradient_norms_every: steps between measurements of the gradient norm of each term; 0 or None for none.
        linear: whether the model's forward returns the loss itself (see `ntl.models.linear_head.LinearHead`).
        measure: called at each validation, in every process; what it returns is logged with a prefix (`eval_accuracy`).
        arguments: of transformers' Trainer.
    """

    def __init__(
        self,
        objective: Objective,
        gradient_norms_every: int | None = None,
        linear: bool = False,
        measure: Callable[[], Mapping[str, float]] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(objective=objective, shift_labels=False, **arguments)  # layouts align the labels
        self.gradient_norms_every = gradient_norms_every
        self.linear = linear
        self.measure = measure
        self._training = TrainingMeter()
        self._validation = ValidationMeter(objective.number_parts)
        self._gradient_norms = GradientNorms()

    def _get_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        loader = super()._get_dataloader(*arguments, **options)
        if isinstance(loader.batch_sampler, BatchSamplerShard):  # with several processes, the collator takes the part
            loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0
        return loader

    def loss_parts(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], counts: Counts | None
    ) -> tuple[LossParts, Any]:
        measures = model.training and self._measures_gradients()
        outputs, parts, terms = self._forward(model, inputs, counts, with_terms=measures)
        if model.training:
            self._training.add(parts.parts, self.state.global_step)
            if measures:
                self._gradient_norms.measure(terms, model)
        else:
            self._validation.add(parts.parts, counts)
        return parts, outputs

    def _forward(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], counts: Counts | None, with_terms: bool
    ) -> tuple[Any, LossParts, dict[str, torch.Tensor]]:
        """Return the model's outputs, the loss and, on request, the terms of its total."""
        if self.linear:  # there are no logits
            options = {"labels": inputs["labels"], "counts": counts, "terms": with_terms}
            found = model(**model_inputs(inputs), **options)
            return ({}, *found) if with_terms else ({}, found, {})
        outputs = model(**model_inputs(inputs))
        parts = self.objective(outputs, inputs, counts)
        return outputs, parts, self.objective.terms(outputs, inputs, counts) if with_terms else {}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        self._check_adapters(Path(resume_from_checkpoint))
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        self._check_adapters(Path(self.state.best_model_checkpoint))
        super()._load_best_model()

    def _check_adapters(self, folder: Path) -> None:
        """Refuse a checkpoint with other adapters than the model's, which the library loads as far as they go."""
        if not hasattr(self.model, "peft_config") or self.is_fsdp_enabled:
            return
        from peft import get_peft_model_state_dict

        with safe_open(folder / "adapter_model.safetensors", "pt") as file:
            there, here = set(file.keys()), set(get_peft_model_state_dict(self.model))
        weights.check("the model with its adapters", here - there, there - here)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse a checkpoint that does not fill the model, where the library would warn and go on."""
        missing = set(load_result.missing_keys)
        tensors = self.model.state_dict()
        filled = {tensor.data_ptr() for name, tensor in tensors.items() if name not in missing}
        missing = {name for name in missing if tensors[name].data_ptr() not in filled}  # tied ones are filled
        weights.check(f"a {type(self.model).__name__}", missing, load_result.unexpected_keys)

    def _measures_gradients(self) -> bool:
        every = self.gradient_norms_every
        return bool(every) and self.state.global_step % every == 0 and self.accelerator.sync_gradients

    def evaluation_loop(self, *arguments: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        self._validation = ValidationMeter(self.objective.number_parts)
        if distributed.size() > 1:
            self.gather_function = self._repeat_loss
        output = super().evaluation_loop(*arguments, metric_key_prefix=metric_key_prefix, **options)
        measured = {} if self.measure is None else self.measure()
        for name, value in (self._validation.means() | measured).items():
            output.metrics[f"{metric_key_prefix}_{name}"] = value
        return output

    def _repeat_loss(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the processes' mean of a batch's loss once for each row of the batch; their parts differ in size."""
        losses = distributed.summed(losses[:1].clone()) / distributed.size() * torch.ones_like(losses)
        state = self.accelerator.gradient_state
        return losses[: state.remainder] if state.end_of_dataloader and state.remainder > 0 else losses

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._training.means(self.state.global_step) | self._gradient_norms.means()
            self._training, self._gradient_norms = TrainingMeter(), GradientNorms()
        for name, kind in (("loss", "loss"), (f"eval_{self.objective.selection}", "validation loss")):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFinite(
                    f"the {kind} became {logs[name]} by step {self.state.global_step}; a lower train.learning_rate, "
                    "a longer train.warmup_steps or a smaller loss.weight may keep it finite"
                )
        super().log(logs, start_time)
