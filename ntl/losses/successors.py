"""Losses on digits that were published after the Number Token Loss: DIST2Loss and DEL, as functions and objectives.

Notation, shapes and types as in `ntl.losses.functional`. Both are added to the cross-entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl.losses import _checks as check
from ntl.losses import functional
from ntl.losses.objectives import CrossEntropy, LossParts, Objective, _logits
from ntl.losses.options import Counts, CrossEntropyWithDELOptions, CrossEntropyWithDist2Options
from ntl.numbers import IGNORE_INDEX, NumberVocabulary


def dist2_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    *,
    temperature: float = 1.0,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
) -> Tensor:
    """Return DIST2Loss: ℓ = KL(q ‖ P) = Σ_j q_j (log q_j − log P_j), q_j ∝ exp(−(v_j − y)² / τ) on the number tokens.

    P is the softmax over the whole vocabulary, so probability outside the numbers is a loss as well.

    Args:
        temperature: τ > 0; 1 makes q a Gaussian with variance one half.
        reduction: "mean" over the number labels (the paper sums; with a mean the weight means the same for every
            batch), "sum", or "none" for (…).
        count: what the sum is divided by in place of the number of number labels.

    Source: "Teaching Metric Distance to Discrete Autoregressive Language Models" (ICLR 2026), without its appendix's
    place-value weights and contrastive targets.
    """
    check.check_real("temperature", temperature, "the paper uses 1", strict=True)
    mask, scores, index = _digits(logits, labels, numbers, reduction, ignore_index)
    values = numbers.to(logits.device).values.to(scores.dtype)
    target = values[index.clamp_min(0)]
    log_q = (-((values - target[..., None]) ** 2) / temperature).log_softmax(-1)
    everything = logits.to(scores.dtype).logsumexp(-1, keepdim=True)
    log_p = torch.where(mask[..., None], scores - everything, 0.0)
    loss = (log_q.exp() * (log_q - log_p)).sum(-1)
    return functional._reduce(loss, mask, reduction, None, count)


def digit_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    *,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
) -> Tensor:
    """Return the Digit Entropy Loss (DEL): ℓ = w / 10 · Σ_j p_j · BCE(σ(z_j), [v_j = y]), z_j the digit's logit.

    p is the softmax over the ten digits, σ the logistic function, BCE the binary cross-entropy; the gradient flows
    through both. w weighs the digit's place within its number: 2 (k + 1) for a digit before the point (units k = 0,
    tens k = 1, …), 1.02^−(j + 1) for the j-th decimal. Places are those of `NumberVocabulary.places`: they differ from
    the published code's only in runs like `1.2.3` and `.5`, which it takes for one number each.

    Args:
        numbers: the ten digits and no more.
        reduction: "mean" over the number labels (the published mean over positions and digits), "sum", or "none".
        count: what the sum is divided by in place of the number of number labels.

    Source: "Digit Entropy Loss" (arXiv 2605.20369) and its code.
    """
    check.check_digits(numbers)
    mask, scores, index = _digits(logits, labels, numbers, reduction, ignore_index)
    places = numbers.places(labels.masked_fill(labels == ignore_index, IGNORE_INDEX)).to(scores.dtype)
    weight = torch.where(places >= 0, 2 * (places + 1), 1.02 ** (places - 1))
    onehot = F.one_hot(index.clamp_min(0), len(numbers)).to(scores.dtype)
    entropies = F.binary_cross_entropy_with_logits(scores, onehot, reduction="none")
    loss = weight * (scores.softmax(-1) * entropies).mean(-1)
    return functional._reduce(loss, mask, reduction, None, count)


def _digits(
    logits: Tensor, labels: Tensor, numbers: NumberVocabulary, reduction: str, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return where labels are numbers (…), the number tokens' logits there (…, K), 0 elsewhere, and labels' indices."""
    check.check_vocabulary(numbers)
    check.check_choice("reduction", reduction, check.REDUCTIONS)
    check.check_tensors(logits, labels, numbers, ignore_index)
    numbers = numbers.to(logits.device)
    index = numbers.lookup(labels.masked_fill(labels == ignore_index, IGNORE_INDEX))
    mask = index >= 0
    return mask, functional._number_scores(logits, numbers).masked_fill(~mask[..., None], 0.0), index


class _CrossEntropyWithTerm(CrossEntropy):
    """CE + weight · a term that is a mean over number labels; parts "ce" and the term's name, without weight."""

    term_name: ClassVar[str]
    fuses = False
    linear_loss, linear_terms = Objective.linear_loss, Objective.linear_terms

    def term(self, logits: Tensor, labels: Tensor, count: Tensor | float | None) -> Tensor:
        raise NotImplementedError

    def loss(self, logits: Tensor, labels: Tensor, counts: Counts | None = None) -> LossParts:
        """Return the loss of logits (B, T, C) and labels (B, T), aligned."""
        ce = super().loss(logits, labels, counts)
        weight = self.options.weight
        with torch.set_grad_enabled(torch.is_grad_enabled() and weight > 0):
            term = self.term(logits, labels, None if counts is None else counts.numbers)
        total = ce.total + weight * term if weight > 0 else ce.total
        return LossParts(total, ce.parts | {self.term_name: term.detach()})

    def terms(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> dict[str, Tensor]:
        """Return {"ce": …, <name of the term>: weight · term}."""
        total = self(outputs, batch, counts).total
        ce = super().loss(_logits(outputs), batch["labels"], counts).total
        return {"ce": ce, self.term_name: total - ce}


class CrossEntropyWithDist2(_CrossEntropyWithTerm):
    """CE + α·DIST2Loss; parts "ce" and "dist2". α = 0.1 in all of its paper's experiments, where it weighs a sum over
    number positions. Here it weighs their mean, so that a batch with n number labels gives the term 1/n of the weight.
    """

    Options = CrossEntropyWithDist2Options
    term_name = "dist2"
    number_parts = ("dist2",)

    def term(self, logits: Tensor, labels: Tensor, count: Tensor | float | None) -> Tensor:
        return dist2_loss(logits, labels, self.numbers, temperature=self.options.temperature, count=count)


class CrossEntropyWithDEL(_CrossEntropyWithTerm):
    """CE + 0.01·DEL, for the digits encoding; parts "ce" and "del"."""

    Options = CrossEntropyWithDELOptions
    encodings = ("digits",)
    term_name = "del"
    number_parts = ("del",)

    def __init__(self, numbers: NumberVocabulary, **options: Any) -> None:
        super().__init__(numbers, **options)
        check.check_digits(numbers)

    def term(self, logits: Tensor, labels: Tensor, count: Tensor | float | None) -> Tensor:
        return digit_entropy_loss(logits, labels, self.numbers, count=count)
