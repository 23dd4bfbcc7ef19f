"""A language model's head and the loss in one step, without ever holding the logits of a batch.

The products of the head are inside the model's own `forward`, so that whatever wraps a model (DistributedDataParallel,
FSDP, autocast) sees its parameters used where it expects it.
"""

from __future__ import annotations

import functools
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ntl.losses.functional import FUSED_FROM

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ntl.losses.objectives import Counts, LossParts, Objective

PATHS = ("auto", "linear", "logits", "off")
# Types of models whose logits are their output layer applied to what it is given, and nothing more.
MODEL_TYPES = ("t5", "gpt2")


class LinearHead:
    """While entered, `model(**inputs, labels=…, counts=…)` returns the objective's LossParts in place of logits.

    Labels are aligned with the logits that the model would return. With `terms=True` it returns (LossParts, terms), the
    latter as `Objective.terms`. Without labels the model is as it was.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective) -> None:
        self.model, self.objective = model, objective

    def __enter__(self) -> LinearHead:
        model, objective, original = self.model, self.objective, self.model.forward

        @functools.wraps(original)
        def forward(
            self: PreTrainedModel,
            *arguments: Any,
            labels: Tensor | None = None,
            counts: Counts | None = None,
            terms: bool = False,
            **inputs: Any,
        ) -> Any:
            if labels is None:
                return original(*arguments, **inputs)
            head = self.get_output_embeddings()
            head.forward = _given  # what the head is given comes back as logits
            try:
                hidden = original(*arguments, **inputs).logits
            finally:
                del head.forward
            options = {"labels": labels, "counts": counts, "bias": head.bias}
            parts: LossParts = objective.linear_loss(hidden, head.weight, **options)
            return (parts, objective.linear_terms(hidden, head.weight, **options)) if terms else parts

        self.before = vars(model).get("forward")
        model.forward = MethodType(forward, model)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self.model.forward
        if self.before is not None:
            self.model.forward = self.before


def _given(hidden: Tensor) -> Tensor:
    return hidden


def choose(path: str, model: PreTrainedModel, objective: Objective, tokens: int) -> str:
    """Return "linear", "logits" or "off": how a loss of `tokens` labels at a time is to be computed.

    "linear" computes it from the hidden states (`LinearHead`), "logits" by the fused functions from the logits, "off"
    by the plain ones. "auto" is "linear" where the logits are many; where they are few nothing is gained.

    Raises:
        ValueError: the path is unknown, or neither model nor objective can go it.
    """
    if path not in PATHS:
        raise ValueError(f"train.fused: got '{path}', expected one of {', '.join(PATHS)}")
    head = model.get_output_embeddings()
    simple = model.config.model_type in MODEL_TYPES and type(head) is nn.Linear
    if path in ("linear", "logits") and not objective.fuses:
        raise ValueError(
            f"train.fused: got '{path}' for {type(objective).__name__}, expected a loss with more than one "
            "implementation (CrossEntropy, CrossEntropyWithNTL); use train.fused=auto"
        )
    if path == "linear" and not simple:
        raise ValueError(
            f"train.fused: got 'linear' for a {type(model).__name__} whose head is a {type(head).__name__}, expected a "
            f"model of type {' or '.join(MODEL_TYPES)} with a linear head; use train.fused=auto"
        )
    if path != "auto":
        return path
    # on accelerators torch's own kernels are fast already
    if not objective.fuses or model.device != torch.device("cpu") or tokens * model.config.vocab_size < FUSED_FROM:
        return "off"
    return "linear" if simple else "logits"
