"""An objective as the loss of transformers' Trainer or of a subclass of it (Seq2SeqTrainer, TRL's SFTTrainer).

Trainer tells a loss how many labels the accumulated batch of all processes has, and not how many of them are number
tokens. A mean over number tokens needs that count as well, or it depends on how a batch is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ntl.losses.objectives import LossParts, Objective, shifted
from ntl.losses.options import Counts


class ObjectiveMixin:
    """A Trainer's loss is an `Objective`, with means over the whole accumulated batch of all processes.

    >>> class NTLTrainer(ObjectiveMixin, Trainer): ...
    >>> trainer = NTLTrainer(model, args, train_dataset=data, objective=CrossEntropyWithNTL(numbers))

    Loss and gradient equal those of one large batch under gradient accumulation, DDP and FSDP. An encoder–decoder
    model gets its `decoder_input_ids` from the labels if the collator makes none. Seq2SeqTrainer with
    `predict_with_generate` reports the model's own loss in evaluations, and SFTTrainer does not log its token accuracy.

    Args:
        objective: the loss; its own `label_smoothing` takes the place of the training arguments'.
        shift_labels: whether labels are moved one step to the left, as causal language models need it; None: unless
            the model is an encoder–decoder. False for masked language models and for labels aligned with the logits.
        arguments, options: of the Trainer.

    Raises:
        TypeError: `objective` is no Objective.
        ValueError: there is another loss among the Trainer's options, or sequences are split over devices.
    """

    def __init__(self, *arguments: Any, objective: Objective, shift_labels: bool | None = None, **options: Any) -> None:
        if not isinstance(objective, Objective):
            raise TypeError(
                f"got an objective of type {type(objective).__name__}, expected one of ntl.losses, such as "
                "CrossEntropyWithNTL(numbers)"
            )
        if options.get("compute_loss_func") is not None:
            raise ValueError(
                "got compute_loss_func beside objective, expected one of them: leave compute_loss_func out"
            )
        super().__init__(*arguments, **options)
        if self.args.label_smoothing_factor:
            raise ValueError(
                f"got label_smoothing_factor={self.args.label_smoothing_factor} beside objective, expected 0: give "
                "label_smoothing to the objective"
            )
        parallelism = getattr(self.accelerator, "parallelism_config", None)
        if any((getattr(parallelism, name, None) or 1) > 1 for name in ("cp_size", "sp_size")):
            raise ValueError(
                "got sequences that are split over devices, expected data parallelism: label counts are of whole rows"
            )
        self.objective = objective
        encoder_decoder = getattr(getattr(self.model, "config", None), "is_encoder_decoder", False)
        self.shift_labels = not encoder_decoder if shift_labels is None else shift_labels
        self.loss_is_scaled_for_ga = True  # parts are divided by the whole batch's counts already

    def aligned_labels(self, batch: Mapping[str, Any]) -> torch.Tensor:
        """Return the labels (B, T) of a collated batch, aligned with the logits."""
        if batch.get("shift_labels") is not None:  # the collator has moved them
            return batch["shift_labels"]
        if batch.get("labels") is None:
            raise TypeError(f"got a batch of {', '.join(batch)}, expected labels in it: the collator must make them")
        return shifted(batch["labels"]) if self.shift_labels else batch["labels"]

    def loss_parts(
        self, model: torch.nn.Module, inputs: dict[str, Any], counts: Counts | None
    ) -> tuple[LossParts, Any]:
        """Return the loss of this process's micro-batch, as its share of the means over `counts`, and the outputs."""
        labels = self.aligned_labels(inputs)
        given = {name: value for name, value in inputs.items() if name not in ("labels", "shift_labels")}
        if getattr(self.model.config, "is_encoder_decoder", False) and "decoder_input_ids" not in given:
            given["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
        outputs = model(**given)
        return self.objective(outputs, {**inputs, "labels": labels}, counts), outputs

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Counts | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Return the loss as Trainer expects it; `num_items_in_batch` is what `_get_num_items_in_batch` returned."""
        parts, outputs = self.loss_parts(model, inputs, num_items_in_batch)
        loss = parts.total
        if num_items_in_batch is not None:
            # Gradients and reported losses are averaged over processes, but the counts are of all processes.
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Counts | None:
        """Count labels and number tokens of the micro-batches of a step, over all processes."""
        if not batch_samples:
            return None
        counts = [self.objective.count(self.aligned_labels(batch)) for batch in batch_samples]
        totals = torch.stack([torch.stack([c.labels, c.numbers]) for c in counts]).sum(0).to(device)
        return Counts(*self.accelerator.gather(totals[None]).sum(0))
