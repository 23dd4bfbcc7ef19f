"""xVal as an encoder that fills in the answer's number with its sign: a variant of `xval_mask` on T5's encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ntl.encodings.base import Generated
from ntl.encodings.options import XValMaskSignedOptions
from ntl.encodings.values import check_numbers
from ntl.encodings.xval import XVal
from ntl.numbers import NumberVocabulary
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

BLANK = "[MASK]"


class XValMaskSigned(XVal):
    """Numbers are written as `XVal` writes them; the answer is one number, and is filled in at a blank token.

    Numbers are multiplied by, and predicted as, sign(x)·ln(|x| + 1), not standardised (without `log`, x + 1 and x). The
    token that is predicted at the blank is ignored: only a number can stand there.

    Differences from `xval_mask`, the published form: a number has its sign, which the model must predict; the model is
    T5's encoder with learnt positions, token scores by its embedding and a linear number head; hub weights can be used.
    """

    Options = XValMaskSignedOptions
    log_unit = 1.0
    name = "xval_mask_signed"
    answers = ("number",)
    because = "an encoder of T5's kind fills in one number at a blank, and says no text"

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        check_numbers(rows)

    def _find_numbers(self) -> NumberVocabulary:
        numbers = super()._find_numbers()
        (self.blank,) = self._add_tokens([BLANK])
        return numbers.resized(len(self.tokenizer))

    def encode_answer(self, text: str) -> dict[str, list]:
        """Return one token with the number as its target, NaN for a text without one."""
        return {"input_ids": self.numbers.ids.tolist(), "values": [1.0], "value": [self.scale.target(text)]}

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        from ntl.encodings.heads.xval import XValT5Encoder

        config.xval_positions = self.options.positions
        return XValT5Encoder

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Print the number that is predicted at the blank; there is nothing to search."""
        values = model(**inputs).values
        predicted = values[inputs["input_ids"] == self.blank].double().tolist()  # one blank a row
        return [Generated(self.scale.text(z), truncated=False) for z in predicted]
