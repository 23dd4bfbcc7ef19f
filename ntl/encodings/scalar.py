"""The answer as one number and no text: the regression head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ntl.encodings.base import Encoding, Generated
from ntl.encodings.options import ScalarOptions
from ntl.encodings.tokenizers import TokenizerSource
from ntl.encodings.values import Scale, check_numbers
from ntl.number_grammar import parse_number
from ntl.numbers import NumberVocabulary
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

NUMBER = "[NUM]"  # the label of an answer, so that numbers are counted as for the other methods


class Scalar(Encoding):
    """Questions are text as it is; the answer is one number, predicted from the state at the question's last token.

    Published: T5 for sequence classification with one output, on raw targets (`standardise=False`), subword tokens. For
    causal models the counterpart is the state at the line break that ends a question, under the same head.
    """

    Options = ScalarOptions
    name = "scalar"
    pooled = True
    searches = False
    answers = ("number",)
    because = "a regression head says one number and no text"
    heads = ("number_head",)  # [NUM] itself is never read: its embedding need not be trained

    def __init__(self, source: TokenizerSource, *, learnt: Mapping[str, Any] | None = None, **options: Any) -> None:
        """`learnt` is the scale as it was fitted, for a trained model."""
        super().__init__(source, **options)
        self.scale = Scale(**learnt) if learnt else self._scale()

    def _scale(self) -> Scale:
        chosen = self.options
        return Scale(unit=1.0 if chosen.log else None, significant=chosen.significant, decimals=chosen.decimals)

    @property
    def arguments(self) -> dict[str, Any]:
        return super().arguments | {"learnt": self.scale.to_dict()}

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        check_numbers(rows)
        numbers = (parse_number(row["answer"]) for row in rows["train"])
        self.scale = self._scale().fitted(numbers) if self.options.standardise else self._scale()

    def _find_numbers(self) -> NumberVocabulary:
        ids = self._add_tokens([NUMBER])
        return NumberVocabulary(ids=torch.tensor(ids), values=torch.zeros(1), vocab_size=len(self.tokenizer))

    @property
    def target_pads(self) -> dict[str, Any]:
        return {"value": float("nan")}

    def encode_answer(self, text: str) -> dict[str, list]:
        """Return one token, and as its target the standardised number; NaN for a text without one."""
        return {"input_ids": self.numbers.ids.tolist(), "value": [self.scale.target(text)]}

    def perfect_answer(self, target: Mapping[str, Sequence]) -> str:
        return "".join(self.scale.perfect(target["value"]))

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        from transformers import MODEL_MAPPING

        from ntl.encodings.heads.number import regressor

        return regressor(MODEL_MAPPING[type(config)])

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Print the number that the head predicts; there is nothing to search, so the limits have no bearing."""
        return [Generated(self.scale.text(z), truncated=False) for z in model(**inputs).values[:, 0].double().tolist()]
