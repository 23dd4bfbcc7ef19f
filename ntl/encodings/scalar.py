"""The answer as one number and no text: the regression head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ntl.encodings.base import Encoding, Generated
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

    name = "scalar"
    pooled = True
    searches = False
    answers = ("number",)
    because = "a regression head says one number and no text"
    heads = ("number_head",)  # [NUM] itself is never read: its embedding need not be trained

    def __init__(
        self,
        source: TokenizerSource,
        *,
        log: bool = False,
        standardise: bool = True,
        significant: int = 7,
        decimals: int | None = None,
        learnt: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            log: predict sign(x)·ln(|x| + 1) instead of x.
            standardise: subtract the mean of the training targets and divide by their standard deviation. That changes
                the squared error by a constant factor and lets training begin near the answers.
            significant, decimals: of the printed number, see `Scale`.
            learnt: the scale as it was fitted, for a trained model.
        """
        self.log, self.standardise, self.significant, self.decimals = log, standardise, significant, decimals
        self.scale = Scale(**learnt) if learnt else self._scale(log, significant, decimals)
        super().__init__(source)

    @classmethod
    def check(
        cls,
        *,
        family: str,
        answers: str,
        decode: str,
        log: bool = False,
        standardise: bool = True,
        significant: int = 7,
        decimals: int | None = None,
    ) -> None:
        super().check(family=family, answers=answers, decode=decode)
        cls._scale(log, significant, decimals)

    @staticmethod
    def _scale(log: bool, significant: int, decimals: int | None) -> Scale:
        return Scale(unit=1.0 if log else None, significant=significant, decimals=decimals)

    @property
    def options(self) -> dict[str, Any]:
        names = ("log", "standardise", "significant", "decimals")
        return {name: getattr(self, name) for name in names} | {"learnt": self.scale.to_dict()}

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        check_numbers(rows)
        numbers = (parse_number(row["answer"]) for row in rows["train"])
        scale = self._scale(self.log, self.significant, self.decimals)
        self.scale = scale.fitted(numbers) if self.standardise else scale

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
