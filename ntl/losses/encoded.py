"""Objectives of the methods that write numbers in a way of their own: each accepts that encoding and no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ntl.losses import functional
from ntl.losses.objectives import CrossEntropy, CrossEntropyWithNTL, LossParts, Objective, _get, _logits
from ntl.losses.options import (
    Counts,
    RegressionHeadOptions,
    RegressionTransformerOptions,
    RegressionTransformerWithNTLOptions,
    XValMaskOptions,
    XValOptions,
)


class RegressionTransformer(CrossEntropy):
    """Cross-entropy over the Regression Transformer's tokens."""

    Options = RegressionTransformerOptions
    encodings = ("rt",)


class RegressionTransformerWithNTL(CrossEntropyWithNTL):
    """Cross-entropy over the Regression Transformer's tokens + λ·NTL; the value of a token is its digit.

    The number tokens of all places take part in every position: with "was" a right digit at a wrong place costs
    nothing but cross-entropy.

    The published code trains another loss: it looks up the value of every label, and −100, which pads answers, wraps
    around to the id of a number token. Padding positions are trained to predict that token's digit, and counted in the
    mean. Here they are ignored.
    """

    Options = RegressionTransformerWithNTLOptions
    encodings = ("rt",)


def value_loss(predicted: Tensor, target: Tensor, count: Tensor | float | None = None) -> Tensor:
    """Return the mean of (predicted − target)² over the positions that have a target.

    Args:
        predicted, target: (…), standardised numbers; NaN in `target` where there is none.
        count: what the sum is divided by in place of the number of targets. Without any the loss is 0.
    """
    mask = target.isfinite()
    predicted = predicted.to(functional._computing_dtype(predicted))
    loss = (predicted - target.nan_to_num().to(predicted)) ** 2
    return functional._reduce(loss, mask, "mean", None, count)


class XVal(Objective):
    """xVal: (1 − w)·CE + w·MSE, CE over all labels and MSE over the scaled numbers; parts "ce" and "mse".

    The checkpoint is chosen by the total: the cross-entropy says where a number stands, and not which.
    """

    Options = XValOptions
    encodings = ("xval",)
    selection = "loss"
    number_parts = ("mse",)

    def _losses(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None) -> tuple[Tensor, Tensor]:
        labels, numbers = (None, None) if counts is None else counts
        ce = functional.cross_entropy(_logits(outputs), batch["labels"], self.numbers, count=labels)
        return ce, value_loss(_get(outputs, "values"), batch["labels_value"], numbers)

    def forward(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> LossParts:
        """Return the loss of `logits` (B, T, C) and `values` (B, T) against `labels` and `labels_value` (B, T)."""
        ce, mse = self._losses(outputs, batch, counts)
        shares = self._weigh(ce, mse)
        return LossParts(shares["ce"] + shares["mse"], {"ce": ce.detach(), "mse": mse.detach()})

    def terms(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> dict[str, Tensor]:
        """Return the two terms of the total."""
        return self._weigh(*self._losses(outputs, batch, counts))

    def _weigh(self, ce: Tensor, mse: Tensor) -> dict[str, Tensor]:
        return {"ce": (1 - self.options.weight) * ce, "mse": self.options.weight * mse}


class XValMask(XVal):
    """xVal's encoder that fills in a number: CE + w·MSE, both at the blank; parts "ce" and "mse"."""

    Options = XValMaskOptions
    encodings = ("xval_mask", "xval_mask_signed")

    def _weigh(self, ce: Tensor, mse: Tensor) -> dict[str, Tensor]:
        return {"ce": ce, "mse": self.options.weight * mse}


class RegressionHead(Objective):
    """The mean squared error of one number per question, standardised as the encoding says; part "mse"."""

    Options = RegressionHeadOptions
    encodings = ("scalar",)
    selection = "mse"
    number_parts = ("mse",)

    def forward(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> LossParts:
        """Return the loss of `values` (B, T) against `labels_value` (B, T)."""
        mse = value_loss(_get(outputs, "values"), batch["labels_value"], None if counts is None else counts.numbers)
        return LossParts(mse, {"mse": mse.detach()})

    def terms(self, outputs: Any, batch: Mapping[str, Tensor], counts: Counts | None = None) -> dict[str, Tensor]:
        """Return {"mse": the total}."""
        return {"mse": self(outputs, batch, counts).total}
