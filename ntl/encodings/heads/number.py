"""Models that predict a number at each position: a body of the library with a head of one output on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput


@dataclass
class NumberOutput(ModelOutput):
    """What a model with a number head returns.

    Attributes:
        logits: (B, T, V), where it predicts tokens as well.
        values: (B, T) the predicted numbers, standardised.
    """

    logits: torch.FloatTensor | None = None
    values: torch.FloatTensor | None = None


class NumberHead(nn.Linear):
    """One number from each hidden state: (B, T, width) → (B, T), in the weights' precision even under autocast.

    Half precision would leave a number three digits at most.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.to(self.weight.dtype)).squeeze(-1)

    def draw(self) -> None:
        """Draw the initial weights so that the first predictions have about the spread of the targets."""
        init.normal_(self.weight, std=self.in_features**-0.5)
        init.zeros_(self.bias)


class DrawsNumberHead:
    """For a model of the library that has a number head: draws the head's weights where the library draws its own."""

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, NumberHead):
            module.draw()


@cache
def regressor(body: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return the class of models that are a `body` (T5Model, GPT2Model, …) with a number head and no output layer."""

    class Regressor(DrawsNumberHead, body):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.number_head = NumberHead(config.hidden_size)
            self.post_init()

        def forward(self, **inputs: Any) -> NumberOutput:
            return NumberOutput(values=self.number_head(super().forward(**inputs, use_cache=False).last_hidden_state))

    Regressor.__name__ = Regressor.__qualname__ = f"{body.__name__}Regressor"
    return Regressor
