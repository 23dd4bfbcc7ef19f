"""transformers' Trainer with an objective's loss in it.

Three things are overridden. `compute_loss` calls the objective. `_get_num_items_in_batch` counts number tokens as well
as label tokens over the whole accumulated batch of all processes, so that a mean over number positions is the same
however a batch is divided. `_get_dataloader` leaves the division of a batch to the collator, where the library would
fill up the last batch with rows of the first. Everything else (loop, optimizer, schedule, checkpoints, resuming) is
the library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader
from transformers import Trainer

from ntl import distributed
from ntl.data import model_inputs
from ntl.losses.objectives import Counts, LossParts, Objective
from ntl.training.meters import GradientNorms, TrainingMeter, ValidationMeter


class NotFinite(ArithmeticError):
    """The loss became NaN or infinite."""


class ObjectiveTrainer(Trainer):
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
        super().__init__(**arguments)
        self.objective = objective
        self.gradient_norms_every = gradient_norms_every
        self.linear = linear
        self.measure = measure
        self.loss_is_scaled_for_ga = True  # parts are divided by the whole batch's counts already
        self._training = TrainingMeter()
        self._validation = ValidationMeter(objective.number_parts)
        self._gradient_norms = GradientNorms()

    def _get_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        loader = super()._get_dataloader(*arguments, **options)
        if isinstance(loader.batch_sampler, BatchSamplerShard):  # with several processes, the collator takes the part
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
        outputs, parts, terms = self._forward(model, inputs, num_items_in_batch, with_terms=measures)
        if model.training:
            self._training.add(parts.parts, self.state.global_step)
            if measures:
                self._gradient_norms.measure(terms, model)
            # Gradients are averaged over processes, but the counts are of all processes: sum instead.
            loss = parts.total * distributed.size()
        else:
            self._validation.add(parts.parts, num_items_in_batch)
            loss = distributed.summed(parts.total.clone())
        return (loss, outputs) if return_outputs else loss

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
        """Return a batch's loss once for each of its rows, in place of the library's gathering: it is summed already"""
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
