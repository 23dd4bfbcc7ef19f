"""The losses as small configured objects: options are checked once, when the object is made."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ntl.losses import _checks as check
from ntl.losses import functional
from ntl.losses.options import LossOptions
from ntl.numbers import IGNORE_INDEX, NumberVocabulary


class NumberTokenLoss(nn.Module):
    """The Number Token Loss with fixed options; see `functional.number_token_loss` for each of them.

    >>> loss = NumberTokenLoss(NumberVocabulary.from_tokenizer(tokenizer, model.config.vocab_size), kind="was")
    >>> total = cross_entropy + 0.3 * loss(logits, labels)
    """

    def __init__(
        self,
        numbers: NumberVocabulary,
        *,
        kind: str | Callable[[Tensor, Tensor], Tensor] = "was",
        sigma: float | None = None,
        reweigh: bool = False,
        squash: float | None = None,
        place_value: float = 1.0,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        super().__init__()
        check.check_vocabulary(numbers)
        self.numbers = numbers
        self.options = LossOptions(kind=kind, sigma=sigma, reweigh=reweigh, squash=squash, place_value=place_value)
        check.check_choice("reduction", reduction, check.REDUCTIONS)
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        count: Tensor | float | None = None,
    ) -> Tensor:
        """Return the loss of logits (…, C) and labels (…), aligned; a scalar, or (…) for reduction="none"."""
        return functional._number_token_loss(
            logits, labels, self.numbers, self.options, self.reduction, loss_weights, self.ignore_index, count
        )

    def extra_repr(self) -> str:
        """Show the options in `print(model)`."""
        return f"{self.options}, reduction={self.reduction!r}"


class GaussianCrossEntropy(nn.Module):
    """The Gaussian cross-entropy with fixed options; see `functional.gaussian_cross_entropy`."""

    def __init__(
        self,
        numbers: NumberVocabulary,
        *,
        sigma: float = 1.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        super().__init__()
        check.check_vocabulary(numbers)
        check.check_sigma(sigma)
        check.check_choice("reduction", reduction, check.REDUCTIONS)
        self.numbers = numbers
        self.options = LossOptions(sigma=sigma, label_smoothing=label_smoothing)
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, labels: Tensor, count: Tensor | float | None = None) -> Tensor:
        """Return the loss of logits (…, C) and labels (…), aligned; a scalar, or (…) for reduction="none"."""
        return functional.gaussian_cross_entropy(
            logits,
            labels,
            self.numbers,
            sigma=self.options.sigma,
            label_smoothing=self.options.label_smoothing,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            count=count,
        )

    def extra_repr(self) -> str:
        """Show the options in `print(model)`."""
        return f"{self.options}, reduction={self.reduction!r}"
