"""Drop-ins for the package ntloss 0.3.2: the same names, constructor arguments, calls, attributes and types of errors.

    from ntl.losses import NTLoss      # instead of: from ntloss import NTLoss

Values and gradients are ntloss's. What differs is listed in docs/dropin.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntl.losses import _checks as check
from ntl.losses import _distances as distances
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


class SquashFactorError(AssertionError, ValueError):
    """A squash factor that is not above 1: an AssertionError in ntloss, a ValueError in this package."""


class _DropIn(nn.Module):
    """The tensors that ntloss keeps as attributes are properties here: on the CPU, in float32, and read-only."""

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

    @property
    def number_values_dense(self) -> Tensor:
        """(K,) float32: the values of the number tokens, by ascending id."""
        return self.numbers.values.float()

    @property
    def number_token_ids(self) -> Tensor:
        """(K,) int64: the ids of the number tokens, ascending."""
        return self.numbers.ids

    @property
    def nan_id(self) -> int:
        """The first id that is no number token."""
        return int((~self.is_number_token).nonzero()[0])

    def _check_width(self, logits: Tensor) -> None:
        if self.tokenizer is not None and logits.shape[-1] != self.vocab_size:
            raise ValueError(
                f"The current `vocab_size` is {self.vocab_size}, and the logits have {logits.shape[-1]} columns: pass "
                "the width of the model's output layer, vocab_size=model.config.vocab_size"
            )

    def _token_loss(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        self._check_width(logits)
        return functional.number_token_loss(logits, labels, self.numbers, reweigh=self.reweigh, **options)


class NTLoss(_DropIn):
    """ntloss.NTLoss: NTL-WAS on tokens.

    Args:
        tokenizer: a tokenizer, or a NumberVocabulary (`vocab_size` and `digit_level` are then its own).
        squash_factor: `squash` of `functional.number_token_loss`, above 1.

    Raises:
        SquashFactorError: `squash_factor` is not a finite number above 1.
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
        if squash_factor is not None:
            advice = "The squash factor can't be equal to or smaller than 1: 9 leaves the digits 0 to 9 as they are"
            try:
                check.check_real("squash_factor", squash_factor, advice, least=1.0, strict=True)
            except ValueError as error:
                raise SquashFactorError(str(error)) from None
        self.squash_factor = squash_factor

    @property
    def vocab_to_dist_idx(self) -> Tensor:
        """(vocab_size,) int64: the row of each number token in `dist_lookup`, −1 for all other tokens."""
        return self.numbers.lookup(torch.arange(self.vocab_size))

    @cached_property
    def _dist_lookup(self) -> Tensor:
        values = self.number_values_dense
        return distances.token_distance(values, values, self.squash_factor)

    @property
    def dist_lookup(self) -> Tensor:
        """(K, K) float32: the (squashed) distance between any two number tokens."""
        return self._dist_lookup

    @property
    def max_dist(self) -> Tensor:
        """The largest entry of `dist_lookup`, a scalar."""
        return self.dist_lookup.max()

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

    @property
    def max_dist(self) -> Tensor:
        """The largest loss between two number tokens, a scalar."""
        kind = partial(self.loss_function, reduction="none")
        return distances.largest_distance(self.number_values_dense, LossOptions(kind=kind))

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected value and the probability on number tokens at every position, both (B, T)."""
        self._check_width(logits)
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


class NumberLevelLoss(NTLossDotProduct):
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
        super().__init__(tokenizer, vocab_size, True, reweigh, F.l1_loss)
        check.check_flag("float_level", float_level)
        check.check_digits(self.numbers)
        if max_number_length is not None:
            check.check_real("max_number_length", max_number_length, "20 is ntloss's, None sets no limit", least=1)
        self.float_level = float_level
        self.max_number_length = max_number_length

    @property
    def max_dist(self) -> Tensor:
        """1, the largest symmetric MAPE."""
        return torch.tensor(1.0)

    @property
    def dot(self) -> int | None:
        """The id of the token `.`, None if there is none."""
        return next(iter(self.numbers.dot_ids), None)

    @property
    def powers_of_10(self) -> Tensor | None:
        """(max_number_length,) float32: 1, 10, 100, …; None without a limit."""
        return None if self.max_number_length is None else 10.0 ** torch.arange(self.max_number_length)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = IGNORE_INDEX,
    ) -> Tensor:
        """Return the loss of logits (B, T, C) and labels (B, T); a scalar, or (B, T) for reduction="none"."""
        self._check_width(logits)
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
