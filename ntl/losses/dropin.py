"""Drop-ins for the package ntloss 0.3.2: the same names, constructor arguments and calls.

    from ntl.losses import NTLoss      # instead of: from ntloss import NTLoss

Values and gradients are ntloss's. What differs: the caller's tokenizer is left as it is (ntloss adds missing digits to
it), a batch without numbers keeps its gradient path, half precision is computed and returned in float32, logits may be
wider than the tokenizer, and `.` counts as a decimal point only if the tokenizer has that token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntl.losses import _checks as check
from ntl.losses import functional
from ntl.losses.options import LossOptions
from ntl.numbers import DIGITS, IGNORE_INDEX, NumberVocabulary, warn_of_other_numbers


def ntloss_numbers(tokenizer: Any, vocab_size: int | None = None, digit_level: bool = True) -> NumberVocabulary:
    """Return the number tokens by ntloss's rule.

    With `digit_level` the tokens `0` to `9`; otherwise every token that Python's `float()` takes as it stands, space
    marker and all, and that is finite (`1e5` and `٣` too).

    Args:
        tokenizer: has `get_vocab()` and a length; it is not changed.
        vocab_size: columns of the logits; the tokenizer's length if not given.

    Raises:
        ValueError: a digit is missing (`digit_level`), or there is no number at all.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    if digit_level:
        found = {digit: float(digit) for digit in DIGITS if digit in vocabulary}
        if missing := [digit for digit in DIGITS if digit not in found]:
            raise ValueError(
                f"got a tokenizer without the tokens {' '.join(missing)}, expected all ten digits: add them with "
                "tokenizer.add_tokens and resize the model's embeddings, or use digit_level=False"
            )
        warn_of_other_numbers(tokenizer, "digit_level")
    else:
        found = {token: value for token in vocabulary if (value := _float(token)) is not None}
        if not found:
            raise ValueError(
                f"got a tokenizer of {len(vocabulary)} tokens, none of them a number; expected tokens like 7 or 42: "
                "use a tokenizer that has them"
            )
    tokens = sorted(found, key=vocabulary.__getitem__)
    return NumberVocabulary(
        ids=torch.tensor([vocabulary[token] for token in tokens]),
        values=torch.tensor([found[token] for token in tokens], dtype=torch.float64),
        vocab_size=len(tokenizer) if vocab_size is None else vocab_size,
        dot_ids=(vocabulary["."],) if "." in vocabulary else (),
        tokens=tuple(tokens),
    )


class _DropIn(nn.Module):
    def __init__(self, tokenizer: Any, vocab_size: int | None, digit_level: bool, reweigh: bool) -> None:
        super().__init__()
        check.check_flag("digit_level", digit_level)
        check.check_flag("reweigh", reweigh)
        given = isinstance(tokenizer, NumberVocabulary)
        self.tokenizer = None if given else tokenizer
        self.numbers = tokenizer if given else ntloss_numbers(tokenizer, vocab_size, digit_level)
        self.vocab_size = self.numbers.vocab_size
        self.digit_level = digit_level
        self.reweigh = reweigh

    @property
    def number_values(self) -> Tensor:
        """(vocab_size,) float32: the value of each number token, NaN for all other tokens."""
        values = torch.full((self.vocab_size,), math.nan)
        values[self.numbers.ids] = self.numbers.values.float()
        return values

    @property
    def is_number_token(self) -> Tensor:
        """(vocab_size,) True for number tokens."""
        return ~self.number_values.isnan()

    def _token_loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        return functional.number_token_loss(logits, labels, self.numbers, reweigh=self.reweigh, **options)


class NTLoss(_DropIn):
    """ntloss.NTLoss: NTL-WAS on tokens.

    Args:
        tokenizer: a tokenizer, or a NumberVocabulary (`vocab_size` and `digit_level` are then its own).
        squash_factor: `squash` of `functional.number_token_loss`.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        squash_factor: float | None = None,
    ) -> None:
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        LossOptions(squash=squash_factor)  # checks it
        self.squash_factor = squash_factor

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> Tensor:
        """Return the loss of logits (B, T, C) and labels (B, T); a scalar, or (B, T) for reduction="none"."""
        return self._token_loss(
            logits,
            labels,
            squash=self.squash_factor,
            loss_weights=loss_weights,
            reduction=reduction,
            ignore_index=ignore_index,
        )


class NTLossDotProduct(_DropIn):
    """ntloss.NTLossDotProduct: NTL-Lp on tokens, with any `loss_function(prediction, target, reduction)`."""

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        loss_function: Callable[..., Tensor] = F.mse_loss,
    ) -> None:
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        self.loss_function = loss_function

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected value and the probability on number tokens at every position, both (B, T)."""
        return functional.expected_numbers(logits, self.numbers)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> Tensor:
        """Return the loss of logits (B, T, C) and labels (B, T); a scalar, or (B, T) for reduction="none"."""
        return self._token_loss(
            logits,
            labels,
            kind=partial(self.loss_function, reduction="none"),
            loss_weights=loss_weights,
            reduction=reduction,
            ignore_index=ignore_index,
        )


class NumberLevelLoss(_DropIn):
    """The symmetric MAPE of whole numbers, `functional.number_level_loss`, configured; also ntloss.NumberLevelLoss.

    Args:
        tokenizer: a NumberVocabulary of digits, or a tokenizer as ntloss takes it.
        float_level: a single `.` between digits belongs to the number (12.34); otherwise it ends it (12 and 34).
        reweigh: True by default, as in ntloss (and unlike the other losses here).
        max_number_length: digits that are told apart by their place; None for all.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int | None = 20,
    ) -> None:
        super().__init__(tokenizer, vocab_size, True, reweigh)
        check.check_flag("float_level", float_level)
        check.check_digits(self.numbers)
        if max_number_length is not None:
            check.check_real("max_number_length", max_number_length, "20 is ntloss's, None sets no limit", least=1)
        self.float_level = float_level
        self.max_number_length = max_number_length

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> Tensor:
        """Return the loss of logits (B, T, C) and labels (B, T); a scalar, or (B, T) for reduction="none"."""
        return functional.number_level_loss(
            logits,
            labels,
            self.numbers,
            float_level=self.float_level,
            reweigh=self.reweigh,
            max_number_length=self.max_number_length,
            loss_weights=loss_weights,
            reduction=reduction,
            ignore_index=ignore_index,
        )


def _float(token: str) -> float | None:
    try:
        value = float(token)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
