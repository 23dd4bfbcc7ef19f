"""A language model's head and the loss in one step, without ever holding the logits of a batch.

The products of the head are inside the model's own `forward`, so that whatever wraps a model (DistributedDataParallel,
FSDP, autocast) sees its parameters used where it expects it.
"""

from __future__ import annotations

import functools
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ntl.losses import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ntl.losses.objectives import Counts, LossParts, Objective

OPTION = "train.loss_implementation"
IMPLEMENTATIONS = (*functional.IMPLEMENTATIONS, "linear")
# Types of models whose logits are their output layer applied to what it is given, and nothing more.
MODEL_TYPES = ("t5", "gpt2")


class NotSupported(ValueError):
    """An implementation of the loss that this model or this loss does not have."""


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


def check_request(requested: str, objective: Objective, model_type: str | None = None) -> None:
    """Raise NotSupported unless the objective, and models of that type where it is known, can do what is requested."""
    if requested in ("fused", "linear") and not objective.fuses:
        raise NotSupported(
            f"{OPTION}: got '{requested}' for {type(objective).__name__}, expected a loss with more than one "
            f"implementation (CrossEntropy, CrossEntropyWithNTL); use {OPTION}=auto"
        )
    if requested == "linear" and model_type not in (*MODEL_TYPES, None):
        raise NotSupported(
            f"{OPTION}: got 'linear' for a model of type {model_type}, expected one of type "
            f"{' or '.join(MODEL_TYPES)} with a linear head; use {OPTION}=auto"
        )


def resolve_implementation(
    requested: str, model: PreTrainedModel, objective: Objective, tokens: int, *, sharded: bool = False
) -> str:
    """Return "plain", "fused" or "linear": how a run computes its loss, of `tokens` labels at a time.

    "plain" and "fused" take logits (`Objective.with_implementation`), "linear" the hidden states (`LinearHead`).
    "auto" is the best that model and objective can do where another than the plain one is worth it.

    Args:
        requested: one of IMPLEMENTATIONS.
        sharded: whether each process holds a part of the head's weight only; "auto" is then never "linear".

    Raises:
        ValueError: the request is unknown, or model or objective cannot do it (NotSupported).
    """
    if requested not in IMPLEMENTATIONS:
        raise ValueError(f"{OPTION}: got '{requested}', expected one of {', '.join(IMPLEMENTATIONS)}")
    head = model.get_output_embeddings()
    simple = model.config.model_type in MODEL_TYPES and type(head) is nn.Linear
    check_request(requested, objective, model.config.model_type)
    if requested == "linear" and not simple:
        raise NotSupported(
            f"{OPTION}: got 'linear' for a {type(model).__name__} whose head is a {type(head).__name__}, expected a "
            f"linear head; use {OPTION}=auto"
        )
    if requested != "auto":
        return requested
    if not objective.fuses or not functional.is_worth_fusing(model.device, tokens * model.config.vocab_size):
        return "plain"
    return "linear" if simple and not sharded else "fused"
