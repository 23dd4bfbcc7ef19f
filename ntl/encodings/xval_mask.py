"""xVal as it was published beside the Number Token Loss: an encoder that fills in the last number of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ntl.encodings.base import Generated
from ntl.encodings.options import XValMaskOptions
from ntl.encodings.values import check_numbers
from ntl.encodings.xval import XVal
from ntl.numbers import NumberVocabulary, parse_number
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

BLANK = "[MASK]"


class XValMask(XVal):
    """Numbers are written as `XVal` writes them; the answer is one number, and is filled in at a blank token.

    Numbers are multiplied by, and predicted as, sign(x)·ln(|x| + 1), not standardised (without `log`, x + 1 and x). Of
    T5 only the encoder is built. The filled-in token is not looked at: there is but one that can stand there.
    """

    Options = XValMaskOptions
    log_unit = 1.0
    name = "xval_mask"
    answers = ("number",)
    because = "an encoder of T5's kind fills in one number at a blank, and says no text"

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        check_numbers(rows)
        numbers = (parse_number(row["answer"]) for row in rows["train"])
        self.scale = self._scale().fitted(numbers, standardise=False)

    def _find_numbers(self) -> NumberVocabulary:
        numbers = super()._find_numbers()
        (self.blank,) = self._add_tokens([BLANK])
        return numbers.resized(len(self.tokenizer))

    def encode_answer(self, text: str) -> dict[str, list]:
        """Return one token with the number as its target, NaN for a text without one."""
        return {"input_ids": self.numbers.ids.tolist(), "values": [1.0], "value": [self.scale.target(text)]}

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        from ntl.encodings.heads.xval import XValEncoder

        config.xval_positions = self.options.positions
        return XValEncoder

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Print the number that is predicted at the blank; there is nothing to search."""
        values = model(**inputs).values
        predicted = values[inputs["input_ids"] == self.blank].double().tolist()  # one blank a row
        return [Generated(self.scale.write(self.scale.restore(z)), truncated=False) for z in predicted]
