"""Objectives: what a training run minimises, as a total with named parts.

An objective has two call forms, told apart by the second argument:

* `objective(outputs, batch, counts) -> LossParts` in this project's trainer. `batch["labels"]` is aligned with
  `outputs.logits`, and `counts` hold the denominators of the whole accumulated, all-process batch, so that the means
  do not depend on how a batch is divided.
* `objective(outputs, labels, num_items_in_batch=…) -> Tensor`, as transformers' Trainer calls its
  `compute_loss_func=`; see `CrossEntropy.compute_loss`.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntl.losses import _checks as check
from ntl.losses import functional
from ntl.losses.options import Counts, CrossEntropyOptions, CrossEntropyWithNTLOptions, LossOptions, ObjectiveOptions
from ntl.numbers import IGNORE_INDEX, NumberVocabulary


@dataclass
class LossParts:
    """A loss to differentiate, and what it is made of.

    Attributes:
        total: scalar with gradient.
        parts: detached means by name. With counts given, each is this micro-batch's share of the mean: they add up.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module):
    """Base of all objectives.

    Args:
        numbers: the number tokens.
        options: those that `Options` declares, by keyword; ValueError for one that is out of range.

    Attributes:
        Options: frozen dataclass that declares the options (see `ntl.options`); `options` is an instance of it.
        encodings: names of the encodings that it can be trained with.
        selection: name of the part whose validation value chooses the checkpoint; "loss" is the total.
        number_parts: names of the parts that are means over number labels; all others are means over all labels.
        fuses: whether it can be computed from hidden states, by `linear_loss`, and heeds `implementation`.
        implementation: of the functions of logits, "auto", "plain" or "fused"; they differ in rounding alone. See
            `with_implementation`.
    """

    Options: ClassVar[type[ObjectiveOptions]] = ObjectiveOptions
    encodings: ClassVar[tuple[str, ...]] = ("digits", "subword")
    selection: ClassVar[str] = "ce"
    number_parts: ClassVar[tuple[str, ...]] = ("ntl",)
    fuses: ClassVar[bool] = False
    implementation: str = "auto"

    def __init__(self, numbers: NumberVocabulary, **options: Any) -> None:
        super().__init__()
        check.check_vocabulary(numbers)
        self.numbers = numbers
        self.options = self.Options(**options)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Options" in vars(cls):  # so that help(cls) names the options
            numbers = inspect.Parameter("numbers", inspect.Parameter.POSITIONAL_OR_KEYWORD)
            cls.__signature__ = inspect.Signature([numbers, *inspect.signature(cls.Options).parameters.values()])

    def extra_repr(self) -> str:
        """Show the options in `print(objective)`."""
        return repr(self.options)

    def with_implementation(self, implementation: str) -> Self:
        """Return the same objective, computed by "auto", "plain" or "fused"; this one is left as it is."""
        check.check_choice("implementation", implementation, functional.IMPLEMENTATIONS)
        objective = copy.copy(self)
        objective.implementation = implementation
        return objective

    def count(self, labels: Tensor) -> Counts:
        """Return how many labels are not ignored, and how many of them are number tokens, as scalar tensors."""
        return Counts(labels=(labels != IGNORE_INDEX).sum(), numbers=self.numbers.mask(labels).sum())

    def forward(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> LossParts:
        """Return the loss of a model's outputs on a batch; without counts, means are over this batch alone."""
        raise NotImplementedError

    def terms(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> dict[str, Tensor]:
        """Return the total as a sum of named terms with gradient, to compare the strength of their gradients."""
        return {"ce": self(outputs, batch, counts).total}

    def linear_loss(
        self,
        hidden: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        counts: Counts | None = None,
        bias: Tensor | None = None,
    ) -> LossParts:
        """Return the loss of the logits hidden · lm_head_weightᵀ + bias without forming them; see `fuses`."""
        raise NotImplementedError(f"{type(self).__name__} needs logits: call it with a model's outputs")

    def linear_terms(
        self,
        hidden: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        counts: Counts | None = None,
        bias: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return what `terms` does, of the logits hidden · lm_head_weightᵀ + bias without forming them."""
        return {"ce": self.linear_loss(hidden, lm_head_weight, labels, counts, bias).total}


class CrossEntropy(Objective):
    """Cross-entropy, or with `sigma` the Gaussian cross-entropy (GCE).

    Parts: "ce", and with `sigma` "gce", with "ce" then the plain cross-entropy for comparison and selection.
    """

    Options = CrossEntropyOptions
    fuses = True
    _looked = False  # whether the warning about accumulation is settled

    @cached_property
    def _total_options(self) -> LossOptions:
        return self.options.of_total()

    def loss(self, logits: Tensor, labels: Tensor, counts: Counts | None = None) -> LossParts:
        """Return the loss of logits (B, T, C) and labels (B, T), aligned."""
        return LossParts(
            *functional.total_loss(
                logits, labels, self.numbers, self._total_options, counts=counts, implementation=self.implementation
            )
        )

    def linear_loss(
        self,
        hidden: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        counts: Counts | None = None,
        bias: Tensor | None = None,
    ) -> LossParts:
        """Return the loss of hidden states (B, T, D) under a head's weight (C, D), aligned with labels (B, T)."""
        return LossParts(
            *functional.linear_total_loss(
                hidden, lm_head_weight, labels, self.numbers, self._total_options, bias=bias, counts=counts
            )
        )

    def forward(
        self,
        outputs: Any,
        batch: Mapping[str, Tensor] | Tensor,
        counts: Counts | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        shift_labels: bool | None = None,
    ) -> LossParts | Tensor:
        """Answer both call forms (see the module): LossParts for a batch, a tensor for labels."""
        if isinstance(batch, Mapping):
            return self.loss(_logits(outputs), batch["labels"], counts)
        return self.compute_loss(outputs, batch, num_items_in_batch, shift_labels=shift_labels)

    def compute_loss(
        self,
        outputs: Any,
        labels: Tensor,
        num_items_in_batch: Tensor | int | None = None,
        *,
        shift_labels: bool | None = None,
    ) -> Tensor:
        """Return the total for anyone's Trainer: `Trainer(…, compute_loss_func=CrossEntropyWithNTL(numbers))`.

        Args:
            outputs: what the model returned, with `logits`. Trainer keeps the labels from the model, so encoder–decoder
                models need `decoder_input_ids` from the collator (`DataCollatorForSeq2Seq(tokenizer, model=model)`).
            labels: (B, T), −100 where ignored.
            num_items_in_batch: labels in the whole accumulated batch. Trainer counts labels and not numbers, so the
                mean over number tokens is taken in each micro-batch, and these means are averaged with the
                micro-batches' shares of the labels. Without accumulation and on one device that is the exact mean.
                Otherwise it is exact only if numbers make up the same share of every micro-batch's labels; there is a
                warning, and `ntl.integrations.transformers.ObjectiveMixin` is exact.
            shift_labels: whether labels are to be moved one step to the left, as causal language models need it. By
                default they are unless the outputs have an encoder's states; for a masked language model say False:
                `compute_loss_func=functools.partial(loss, shift_labels=False)`.
        """
        if not isinstance(labels, Tensor):
            raise TypeError(
                f"got labels of type {type(labels).__name__}, expected a tensor (or a batch that holds it): the "
                "data must have a column `labels`"
            )
        given = labels
        if shift_labels is None:
            shift_labels = _get(outputs, "encoder_last_hidden_state") is None
        if shift_labels:
            labels = shifted(labels)
        counts = None
        if num_items_in_batch is not None:
            here, before = self.count(labels), (given != IGNORE_INDEX).sum()
            items = torch.as_tensor(num_items_in_batch, device=labels.device)
            # For some models (GPT-2) Trainer also counts the labels that the shift drops.
            whole = torch.where(items == before, here.labels, items)
            counts = Counts(whole, here.numbers * (whole / here.labels.clamp_min(1)))
        found = self.loss(_logits(outputs), labels, counts)
        if counts is not None and set(self.number_parts) & found.parts.keys():
            self._warn_of_accumulation(items, before)
        return found.total

    def _warn_of_accumulation(self, items: Tensor, here: Tensor) -> None:
        """Warn, once, if there are more labels in the whole batch than in this micro-batch while training."""
        if self._looked or not torch.is_grad_enabled():
            return
        divided = bool((items > here).any())
        self._looked = divided or items.device.type != "cpu"  # to look again would wait for the device
        if divided:
            warnings.warn(
                f"got num_items_in_batch={int(items.max())} for a micro-batch of {int(here)} labels (gradient "
                "accumulation, or several devices): the mean over number tokens is not exact, and micro-batches "
                "without numbers weaken it. ntl.integrations.transformers.ObjectiveMixin is exact: class "
                "NTLTrainer(ObjectiveMixin, Trainer), with objective=… in place of compute_loss_func=…",
                stacklevel=6,  # who called the objective, past torch.nn.Module
            )


class CrossEntropyWithNTL(CrossEntropy):
    """CE + λ·NTL, or with `sigma` GCE + λ·NTL-WAS; see `functional.cross_entropy_with_ntl` for the options.

    Parts: "ce", "ntl" (its mean over number tokens, without λ), and "gce" with `sigma`.

    >>> numbers = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    >>> trainer = Trainer(model, args, train_dataset=data, compute_loss_func=CrossEntropyWithNTL(numbers))
    """

    Options = CrossEntropyWithNTLOptions

    def terms(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> dict[str, Tensor]:
        """Return {"ce": the (Gaussian) cross-entropy, "ntl": λ·NTL}."""
        total = self(outputs, batch, counts).total
        ce = self._without_ntl().loss(_logits(outputs), batch["labels"], counts).total
        return {"ce": ce, "ntl": total - ce}

    def linear_terms(
        self,
        hidden: Tensor,
        lm_head_weight: Tensor,
        labels: Tensor,
        counts: Counts | None = None,
        bias: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return what `terms` does, of the logits hidden · lm_head_weightᵀ + bias without forming them."""
        total = self.linear_loss(hidden, lm_head_weight, labels, counts, bias).total
        ce = self._without_ntl().linear_loss(hidden, lm_head_weight, labels, counts, bias).total
        return {"ce": ce, "ntl": total - ce}

    def _without_ntl(self) -> CrossEntropy:
        alone = CrossEntropy(self.numbers, sigma=self.options.sigma, label_smoothing=self.options.label_smoothing)
        return alone.with_implementation(self.implementation)


def shifted(labels: Tensor) -> Tensor:
    """Return labels (…, T) one step to the left, as a causal model's logits predict them; the last is ignored.

    The labels are moved and not the logits: a slice of the logits would be copied whole.
    """
    return F.pad(labels[..., 1:], (0, 1), value=IGNORE_INDEX)


def _get(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _logits(outputs: Any) -> Tensor:
    logits = _get(outputs, "logits")
    if logits is None:
        raise TypeError(
            f"got outputs of type {type(outputs).__name__} without logits, expected a model's output with `logits`: "
            "use a language model, and leave return_dict at True"
        )
    return logits
