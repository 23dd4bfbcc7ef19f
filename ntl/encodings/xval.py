"""xVal: every number is the same token, scaled by its value.

Source: Golkar et al., "xVal: A Continuous Number Encoding for Large Language Models" (2023), on T5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ntl.encodings.base import Encoding, Generated
from ntl.encodings.options import XValOptions
from ntl.encodings.tokenizers import TokenizerSource
from ntl.encodings.values import Scale
from ntl.number_grammar import numbers_in, parse_number
from ntl.numbers import NumberVocabulary
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NUMBER = "[NUM]"


class XVal(Encoding):
    """A number with its sign is one token `[NUM]`, whose embedding is multiplied by the number's scaled value.

    Numbers are read as `parse_number` reads them; an answer may hold several. In an answer, each is a target as well:
    divided by the root mean square of the training answers, so that the number 0 is the target 0. `Scale.text` writes a
    predicted number; in what a model generates, a number goes on as it was written. Two numbers with no text between
    them are parted by a space.

    Differences from T5 with xVal in the paper's repository, which no table of the paper shows:
        - a number has its sign (published: `-` stays text);
        - with `log`, logarithms are regressed, on one scale for all batches (published: raw values, targets and
          predictions z-scored together in each batch);
        - a number that was generated multiplies the next decoder input (published: 1 in its place);
        - `, ` between two numbers stays text (published: dropped), and special tokens are never read in a text.
    """

    Options = XValOptions
    log_unit: ClassVar[float] = math.log(3e9) / 10  # the natural logarithm in it is log10 / (log10(3·10⁹) / 10)
    name = "xval"
    searches = False
    split_digits = True
    families = ("t5",)
    because = "xVal's values, positions and number head are built for T5, and its numbers are filled in greedily"

    def __init__(self, source: TokenizerSource, *, learnt: Mapping[str, Any] | None = None, **options: Any) -> None:
        """`learnt` is the scale as it was fitted, for a trained model."""
        super().__init__(source, **options)
        self.scale = Scale(**learnt) if learnt else self._scale()
        self.number_id = int(self.numbers.ids[0])

    def _scale(self) -> Scale:
        chosen = self.options
        return Scale(
            unit=self.log_unit if chosen.log else None, significant=chosen.significant, decimals=chosen.decimals
        )

    @property
    def arguments(self) -> dict[str, Any]:
        return super().arguments | {"learnt": self.scale.to_dict()}

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        numbers = (parse_number(found.group()) for row in rows["train"] for found in numbers_in(row["answer"]))
        self.scale = self._scale().fitted(numbers, centre=False)

    def _find_numbers(self) -> NumberVocabulary:
        NumberVocabulary.from_tokenizer(self.tokenizer)  # which complains where a digit is no token
        self._zero = self.tokenizer.convert_tokens_to_ids("0")
        ids = self._add_tokens([NUMBER])
        return NumberVocabulary(ids=torch.tensor(ids), values=torch.zeros(1), vocab_size=len(self.tokenizer))

    @property
    def pad_values(self) -> dict[str, Any]:
        return super().pad_values | {"values": 1.0}

    @property
    def target_pads(self) -> dict[str, Any]:
        return {"value": float("nan")}

    def encode(self, text: str) -> dict[str, list]:
        """Return `input_ids`, the `values` that multiply their embeddings (1 for text), and for the objective each
        number's standardised `value` (NaN for text)."""
        normaliser = self.tokenizer.backend_tokenizer.normalizer
        if normaliser is not None:  # which may make digits of other characters, and put a space before the text
            text = normaliser.normalize_str(text).removeprefix(normaliser.normalize_str("0").removesuffix("0"))
        found = self._numbers(text)
        ends = [0, *(number.end() for number in found)]
        starts = [*(number.start() for number in found), len(text)]
        between = self._between([text[end:start] for end, start in zip(ends, starts, strict=True)])
        # A zero in each number's place is cut off by the tokenizer as a digit, with the right spaces around it.
        ids = super().encode("0".join(between))["input_ids"]
        numbers = iter(float(number.group()) for number in found)
        values, targets = [], []
        for position, index in enumerate(ids):
            if index == self._zero:
                number = next(numbers)
                ids[position] = self.number_id
                values.append(self._multiplier(number))
                targets.append(self.scale.standardise(number))
            else:
                values.append(1.0)
                targets.append(float("nan"))
        return {"input_ids": ids, "values": values, "value": targets}

    def _numbers(self, text: str) -> list[re.Match[str]]:
        """Return every number of a text that becomes a token; no ASCII digit is left outside them."""
        return numbers_in(text)

    def _between(self, texts: list[str]) -> list[str]:
        """Return the texts before, between and after numbers as they are to be encoded."""
        return texts

    def _multiplier(self, number: float) -> float:
        return self.scale.compress(number) if self.options.log else number + 1.0

    def decode(self, ids: Sequence[int] | Tensor, numbers: Sequence[str] | None = None) -> str:
        """Return the text of ids, with the given texts in place of the number tokens, or with `[NUM]` itself."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return self._join(self._fill(ids, numbers or [NUMBER] * len(ids)))

    def _fill(self, ids: Sequence[int], numbers: Sequence[str]) -> Iterator[int | str]:
        remaining = iter(numbers)
        previous = None
        for index in ids:
            if index == self.number_id:
                if previous == self.number_id:
                    yield " "
                yield next(remaining)
            else:
                yield index
            previous = index

    def perfect_answer(self, target: Mapping[str, Sequence]) -> str:
        return self.decode(target["input_ids"], self.scale.perfect(target["value"]))

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        from ntl.encodings.heads.xval import XValT5

        config.xval_positions = self.options.positions
        return XValT5

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Answer token by token, greedily whatever `num_beams` says: a beam would need scores for values."""
        mask = inputs["attention_mask"]
        encoded = model.encode(**inputs)
        ids = torch.full_like(inputs["input_ids"][:, :1], model.config.decoder_start_token_id)
        values = torch.ones_like(ids, dtype=torch.float32)
        answers: list[list[int]] = [[] for _ in ids]
        numbers: list[list[str]] = [[] for _ in ids]
        open_rows = set(range(len(ids)))
        for _ in range(max_new_tokens):
            output = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=ids, decoder_values=values)
            chosen = output.logits[:, -1].argmax(-1).tolist()
            predicted = output.values[:, -1].double().tolist()
            multipliers = [1.0] * len(chosen)
            for row in sorted(open_rows):
                if chosen[row] == self.tokenizer.eos_token_id:
                    open_rows.remove(row)
                    continue
                answers[row].append(chosen[row])
                if chosen[row] == self.number_id:
                    text = self.scale.text(predicted[row])
                    numbers[row].append(text)
                    multipliers[row] = self._multiplier(float(text)) if text else 1.0
            if not open_rows:
                break
            ids = torch.cat([ids, ids.new_tensor(chosen)[:, None]], 1)
            values = torch.cat([values, values.new_tensor(multipliers)[:, None]], 1)
        return [
            Generated(self.decode(answer, texts), truncated=row in open_rows, ids=answer)
            for row, (answer, texts) in enumerate(zip(answers, numbers, strict=True))
        ]
