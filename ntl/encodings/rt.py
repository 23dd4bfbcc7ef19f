"""The Regression Transformer's numbers: one token for each digit and its place, whose value is added to its embedding.

Source: Born and Manica, "Regression Transformer" (2023), in the form that the Number Token Loss was compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ntl.encodings.base import Encoding
from ntl.encodings.options import RegressionTransformerOptions
from ntl.numbers import DIGITS, NumberVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Embedded values are divided by what a tenth of the largest number's logarithm is: 3e9 becomes 10.
LOG_UNIT = math.log10(3e9) / 10


class RegressionTransformer(Encoding):
    """A number is a row of tokens `_digit_place_`: 8.5 is `_8_0_ _5_-1_`, and 800 is `_8_2_ _0_1_ _0_0_`.

    A number in a text is a run of ASCII digits with at most one dot between digits; its sign, like everything else,
    stays text. `decode(encode(text)["input_ids"])` is the text again as far as the tokenizer can tell it, except that:
        - a number with more decimals than there are places is rounded half-up (`report["rounded"]`);
        - a number with more digits before the dot than there are places stays in plain digits (`report["too_large"]`).

    Reading a generated answer, a number ends where the place does not fall. What no number is written as is read all
    the same, and counted (`report["ill_formed"]`, numbers): places left out within a number or at its end are zeros,
    a number that begins with a decimal has a zero before its dot, and a space parts two numbers without any text
    between them.

    For a loss on number tokens, the value of a token is its digit.

    Differences from the published code: zeros at the end of decimals are kept (published: `2.50` becomes `2.5`), as are
    zeros before a number (published: `007` becomes `7`); a tokenizer's space marker before a number stays a token (T5's
    `▁`; published: none); a number of more than 20 digits stays in plain digits (published: a token name outside the
    vocabulary, cut into pieces).
    """

    Options = RegressionTransformerOptions
    name = "rt"
    split_digits = True
    because = "a token is a digit at a place, and their expected value is no token"

    def _find_numbers(self) -> NumberVocabulary:
        plain = NumberVocabulary.from_tokenizer(self.tokenizer)
        self._dots = set(plain.dot_ids)
        self._digit_of = dict(zip(plain.ids.tolist(), plain.tokens, strict=True))
        written = {(digit, place): f"_{digit}_{place}_" for place in self._places() for digit in DIGITS}
        ids = self._add_tokens(list(written.values()))
        self._id_of = dict(zip(written, ids, strict=True))
        self._meaning = {index: pair for pair, index in self._id_of.items()}
        ordered = sorted(self._meaning)
        return NumberVocabulary(
            ids=torch.tensor(ordered),
            values=torch.tensor([float(self._meaning[index][0]) for index in ordered]),
            vocab_size=len(self.tokenizer),
            token_places=tuple(self._meaning[index][1] for index in ordered),
        )

    def _places(self) -> range:
        return range(self.options.highest, self.options.lowest - 1, -1)

    def encode(self, text: str) -> dict[str, list]:
        ids = super().encode(text)["input_ids"]  # digits are tokens of their own here
        written: list[int] = []
        position = 0
        while position < len(ids):
            end, number = self._number_at(ids, position)
            written += self._write(number) or ids[position:end] if number else ids[position:end]
            position = end
        return {"input_ids": written}

    def _number_at(self, ids: Sequence[int], start: int) -> tuple[int, str]:
        """Return where the number that begins at `start` ends, and its text; empty for a token that is no digit."""
        number, position = "", start
        while position < len(ids):
            if ids[position] in self._digit_of:
                number += self._digit_of[ids[position]]
            elif (
                number
                and "." not in number
                and ids[position] in self._dots
                and position + 1 < len(ids)
                and ids[position + 1] in self._digit_of
            ):
                number += "."
            else:
                break
            position += 1
        return max(position, start + 1), number

    def _write(self, number: str) -> list[int]:
        """Return the tokens of a number; none if it has too many digits before the dot."""
        decimals = len(number.partition(".")[2])
        if decimals > -self.options.lowest:
            unit = Decimal(1).scaleb(self.options.lowest)
            exact = Context(prec=len(number) + 1, Emax=MAX_EMAX, Emin=MIN_EMIN)
            number = format(Decimal(number).quantize(unit, rounding=ROUND_HALF_UP, context=exact), "f")
        whole, _, fraction = number.partition(".")
        if len(whole) > self.options.highest + 1:
            self.report["too_large"] += 1
            return []
        self.report["rounded"] += decimals > -self.options.lowest
        return [self._id_of[digit, len(whole) - 1 - k] for k, digit in enumerate(whole + fraction)]

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        return self._join(self._read(ids))

    def _read(self, ids: Sequence[int]) -> Iterator[int | str]:
        """Yield the ids with each number's in place of its tokens."""
        number: list[tuple[str, int]] = []
        for index in [*ids, None]:
            meaning = self._meaning.get(index)
            if number and (meaning is None or meaning[1] >= number[-1][1]):
                yield self._number(number, followed=meaning is not None)
                if meaning is not None:
                    yield " "
                number = []
            if meaning is not None:
                number.append(meaning)
            elif index is not None:
                yield index

    def _number(self, tokens: Sequence[tuple[str, int]], followed: bool) -> str:
        """Return the number that digits at falling places make up; `followed`: by another number, without any text."""
        digit_at = {place: digit for digit, place in tokens}
        first, last = max(*digit_at, 0), min(*digit_at, 0)
        well_formed = len(tokens) == first - last + 1 and not followed
        self.report["ill_formed"] += not well_formed
        whole = "".join(digit_at.get(place, "0") for place in range(first, -1, -1))
        fraction = "".join(digit_at.get(place, "0") for place in range(-1, last - 1, -1))
        return f"{whole}.{fraction}" if fraction else whole

    def adapt(self, model: PreTrainedModel) -> None:
        """Add to every token's learnt embedding the fixed one of its value; nothing is added to the output layer."""
        learnt = model.get_input_embeddings()
        rows, width = learnt.weight.shape
        fixed = torch.zeros(rows, width, dtype=torch.float64)
        for index, (digit, place) in self._meaning.items():
            fixed[index] = value_embedding(int(digit) * 10.0**place, width)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.weight is learnt.weight:  # T5's stacks have one each
                module.register_buffer("value_embeddings", fixed.to(learnt.weight), persistent=False)
                module.register_forward_hook(_add_values)


def value_embedding(value: float, width: int) -> Tensor:
    """Return the fixed embedding (width,) of a token's value v, in float64.

    Element 2i is f(v / (2i + 1)) and element 2i + 1 its negative, f(x) = sign(x)·log10(|x| + 1) / (log10(3·10⁹) / 10).
    """
    shares = value / torch.arange(1, width + 1, 2, dtype=torch.float64)
    scaled = shares.sign() * (shares.abs() + 1).log10() / LOG_UNIT
    return torch.stack([scaled, -scaled], dim=1).flatten()[:width]


def _add_values(module: nn.Embedding, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output + module.value_embeddings[inputs[0]]
