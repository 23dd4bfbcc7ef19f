"""xVal as it was published beside the Number Token Loss: an encoder that fills in the last number of a text.

Source: `src/ntl/xval` in the paper's repository, on the model of Golkar et al., "xVal" (2023).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ntl.encodings.base import Generated
from ntl.encodings.options import XValMaskOptions
from ntl.encodings.tokenizers import TokenizerSource
from ntl.encodings.xval_mask_signed import XValMaskSigned
from ntl.number_grammar import parse_number
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_UNSIGNED = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class XValMask(XValMaskSigned):
    """Unsigned numbers are tokens, signs stay text, and the answer's number is filled in at a blank.

    **The model is shown the sign of the answer**, as in the published evaluation: `-` stands before the blank, in test
    questions too, and is written before the predicted number. To ask a trained model for a negative answer, end the
    question with ` -`.

    Numbers are multiplied by, and predicted as, ln(x + 1); see `ntl.encodings.heads.xval.XValEncoder` for the model and
    its differences. Further differences from the published code: a number is always written, whatever token has the
    highest score at the blank (published: that token); numbers have seven significant digits (published: those of a
    Python float); questions and answers are joined without a further space token.
    """

    Options = XValMaskOptions
    name = "xval_mask"
    scratch_only = True
    because = (
        "an encoder from scratch (model.init=scratch) with the sizes of a T5 model fills in one number, and no text"
    )

    def __init__(self, source: TokenizerSource, **arguments: Any) -> None:
        """See `XVal`."""
        super().__init__(source, **arguments)
        self._minus = self.encode(" -")["input_ids"]

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        super().fit(rows)
        for split, members in rows.items():
            for index, row in enumerate(members):
                if row["question"].rstrip().endswith("-"):
                    raise ValueError(
                        f"row {index + 1} of the split '{split}' has a question that ends with a minus sign, which "
                        f"'{self.name}' takes for the sign of the answer: change or remove it, or use "
                        f"loss=xval_mask_signed (the question is {row['question'][:80]!r})"
                    )

    def _numbers(self, text: str) -> list[re.Match[str]]:
        return list(_UNSIGNED.finditer(text))

    def _between(self, texts: list[str]) -> list[str]:
        """Drop the commas between numbers, as published: `3, 5` is two number tokens and nothing else."""
        inner = ["" if text in (",", ", ") else text for text in texts[1:-1]]
        return [texts[0], *inner, texts[-1]] if len(texts) > 1 else texts

    def encode_answer(self, text: str) -> dict[str, list]:
        """Return the tokens of the sign, if any, and one token with the unsigned number as its target."""
        number = parse_number(text)
        sign = self._minus if number is not None and number < 0 else []
        target = float("nan") if number is None else self.scale.standardise(abs(float(number)))
        return {
            "input_ids": [*sign, self.number_id],
            "values": [1.0] * (len(sign) + 1),
            "value": [*[float("nan")] * len(sign), target],
        }

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        from ntl.encodings.heads.xval import XValEncoder

        config.xval_positions = self.options.positions
        return XValEncoder

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Print the number that is predicted at the blank, with the sign that stands before it."""
        values = model(**inputs).values.double().tolist()
        answers = []
        for ids, predicted in zip(inputs["input_ids"].tolist(), values, strict=True):
            blank = ids.index(self.blank)
            negative = ids[max(0, blank - len(self._minus)) : blank] == self._minus
            answers.append(Generated(self.scale.text(-predicted[blank] if negative else predicted[blank]), False))
        return answers
