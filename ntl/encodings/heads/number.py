"""Heads that predict numbers, and the regression head's model: a body of the library with such a head on it."""

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
        values: (B, T) the predicted numbers, standardised; (B, 1) with one number per question.
    """

    logits: torch.FloatTensor | None = None
    values: torch.FloatTensor | None = None


class NumberHead(nn.Sequential):
    """Layers that turn each hidden state into one number: (…, width) → (…), in float32 even under autocast.

    Half precision would leave three significant digits at most.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.to(self[-1].weight.dtype)).squeeze(-1)


class NumberLayer(nn.Linear):
    """A linear layer of a number head: weights are drawn so that first predictions have the spread of the targets."""

    def draw(self) -> None:
        init.normal_(self.weight, std=self.in_features**-0.5)
        init.zeros_(self.bias)


class DrawsNumberHead:
    """For a model of the library that has a number head: draws the head's weights where the library draws its own."""

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, NumberLayer):  # the library passes over modules without parameters of their own
            module.draw()


@cache
def regressor(body: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return the class of models that predict one number per question from a `body` (T5Model, GPT2Model, …).

    The head (dropout, dense, tanh, dropout, linear) reads the state at the last token of the question. With T5 this is
    the library's T5ForSequenceClassification with one output: the decoder reads the question, shifted by one, and the
    head its state at the position of the end token.
    """

    class Regressor(DrawsNumberHead, body):
        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            width, rate = config.hidden_size, getattr(config, "classifier_dropout", None) or 0.0
            self.number_head = NumberHead(
                nn.Dropout(rate), NumberLayer(width, width), nn.Tanh(), nn.Dropout(rate), NumberLayer(width, 1)
            )
            self.post_init()

        def forward(self, attention_mask: Tensor, **inputs: Any) -> NumberOutput:
            """Return `values` (B, 1) of input_ids and attention_mask (B, S), padded on the right."""
            hidden = super().forward(attention_mask=attention_mask, **inputs, use_cache=False).last_hidden_state
            last = attention_mask.sum(1, keepdim=True) - 1
            return NumberOutput(values=self.number_head(hidden.take_along_dim(last[..., None], 1)))

    Regressor.__name__ = Regressor.__qualname__ = f"{body.__name__}Regressor"
    return Regressor
