"""Decoding by the expected value of each digit, instead of by its most likely value."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from ntl.numbers import NumberVocabulary


class ExpectedValueProcessor(LogitsProcessor):
    """Wherever the likeliest token is a number token, let the one nearest to the expected value be chosen.

    The expected value is taken under the softmax over the number tokens alone. The chosen token receives the
    probability of all number tokens, so that it is the likeliest and the scores of beams stay comparable; the other
    number tokens receive none. Of several tokens equally near (twins such as `7` and `▁7`, or a value half-way) the
    likeliest is chosen. Rows whose likeliest token is no number stay as they are.
    """

    def __init__(self, numbers: NumberVocabulary) -> None:
        self.numbers = numbers

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the rewritten scores (B, V) of the next token, given its scores (logits or log-probabilities)."""
        numbers = self.numbers.to(scores.device)
        mine = scores[:, numbers.ids].double()
        expected = mine.softmax(-1) @ numbers.values
        distance = (numbers.values - expected[:, None]).abs()
        nearest = distance <= distance.min(-1, keepdim=True).values
        chosen = mine.masked_fill(~nearest, -torch.inf).argmax(-1, keepdim=True)
        mass = mine.logsumexp(-1, keepdim=True)
        replaced = torch.full_like(mine, -torch.inf).scatter(1, chosen, mass).to(scores.dtype)
        rewritten = scores.index_copy(1, numbers.ids, replaced)
        return torch.where(numbers.mask(scores.argmax(-1))[:, None], rewritten, scores)
