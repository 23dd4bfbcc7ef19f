"""A language model's head and the loss in one step, without ever holding the logits of a batch.

The products of the head are inside the model's own `forward`, so that whatever wraps a model (DistributedDataParallel,
FSDP, autocast) sees its parameters used where it expects it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ntl.losses import functional
from ntl.numbers import IGNORE_INDEX

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ntl.losses.objectives import Counts, LossParts, Objective

OPTION = "train.loss_implementation"
IMPLEMENTATIONS = (*functional.IMPLEMENTATIONS, "linear")


class NotLinear(ValueError):
    """A model whose logits are not its output layer times hidden states; the text says what they are."""


@contextlib.contextmanager
def replaced(head: nn.Module, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let `head` return what `forward` does; hooks on the module still run."""
    before = vars(head).get("forward")
    head.forward = forward
    try:
        yield
    finally:
        del head.forward
        if before is not None:
            head.forward = before


@torch.no_grad()
def logits_scale(model: PreTrainedModel) -> float:
    """Return s such that the model's logits are s · (hidden · Wᵀ + bias), with hidden, W and bias of its output layer.

    The model is run on two tokens with an output layer that returns large random numbers: whatever the model does to
    logits afterwards (soft-capping, a factor, masking) shows in what comes out, whichever way it is configured.

    Args:
        model: any language model of transformers, with adapters or without; left as it was.

    Raises:
        NotLinear: the output layer is not a plain linear one, or its product is changed by more than a factor.
    """
    head = model.get_output_embeddings()
    name = type(getattr(model, "get_base_model", lambda: model)()).__name__
    if type(head) is not nn.Linear:
        raise NotLinear(f"a {name} whose output layer is a {type(head).__name__}")
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})
    seen: list[Tensor] = []
    draws = torch.Generator().manual_seed(0)
    probe = torch.randn(1, 2, head.out_features, generator=draws, dtype=torch.float64).mul_(1e3)
    probe = probe.to(head.weight.device, head.weight.dtype)

    def probing(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return probe

    training = model.training
    model.eval()
    try:
        with replaced(head, probing):
            after = model(**inputs).logits
        with replaced(head, _given):
            given = model(**inputs).logits
    except Exception as error:  # a model that does more with its logits than to return them
        raise NotLinear(f"a {name} whose logits are more than its output layer's ({error})") from error
    finally:
        model.train(training)
    if len(seen) != 1 or after.shape != probe.shape:
        raise NotLinear(f"a {name} whose logits are not those of its output layer")
    scale = float((after * probe).double().sum() / probe.double().square().sum())
    error = 1e-3 if head.weight.dtype in (torch.float16, torch.bfloat16) else 1e-5
    if not torch.allclose(after.double(), scale * probe.double(), rtol=error, atol=error):
        raise NotLinear(f"a {name} whose logits are soft-capped or otherwise changed behind the output layer")
    if given.shape != seen[0].shape:
        raise NotLinear(f"a {name} whose hidden states are changed behind the output layer")
    return scale


def labelled_logits(model: PreTrainedModel, inputs: Mapping[str, Tensor], labels: Tensor) -> Tensor | None:
    """Return a model's logits (N, C) at the N positions that have a label, in their order; None if it has no logits.

    Other positions do not enter an output layer that is a module of its own.

    Args:
        inputs: of the model's forward.
        labels: (B, T), aligned with the logits; IGNORE_INDEX where there is none.
    """
    valid = labels != IGNORE_INDEX
    head, left_out = model.get_output_embeddings(), False
    compute = None if head is None else head.forward

    def at_labels(hidden: Tensor) -> Tensor:
        nonlocal left_out
        left_out = hidden.shape[:-1] == valid.shape
        return compute(hidden[valid][None] if left_out else hidden)

    with contextlib.nullcontext() if head is None else replaced(head, at_labels):
        logits = getattr(model(**inputs), "logits", None)
    return logits if logits is None else logits[0] if left_out else logits[valid]


class NotSupported(ValueError):
    """An implementation of the loss that this model or this loss does not have."""


class LinearHead:
    """While entered, `model(**inputs, labels=…, counts=…)` returns the objective's LossParts in place of logits.

    Labels are aligned with the logits that the model would return. With `terms=True` it returns (LossParts, terms), the
    latter as `Objective.terms`. Without labels the model is as it was.

    Raises:
        NotLinear: see `logits_scale`.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective) -> None:
        self.model, self.objective = model, objective
        self.scale = logits_scale(model)

    def __enter__(self) -> LinearHead:
        model, objective, scale, original = self.model, self.objective, self.scale, self.model.forward

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
            with replaced(head, _given):  # what the head is given comes back as logits, multiplied by `scale`
                hidden = original(*arguments, **inputs).logits
            bias = head.bias if head.bias is None or scale == 1 else head.bias * scale
            options = {"labels": labels, "counts": counts, "bias": bias}
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


def check_request(requested: str, objective: Objective) -> None:
    """Raise NotSupported if the loss has no such implementation, whatever the model."""
    if requested in ("fused", "linear") and not objective.fuses:
        raise NotSupported(
            f"{OPTION}: got '{requested}' for {type(objective).__name__}, expected a loss with more than one "
            f"implementation (CrossEntropy, CrossEntropyWithNTL); use {OPTION}=auto"
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
    check_request(requested, objective)
    if requested not in ("auto", "linear"):
        return requested
    if requested == "auto":
        if not objective.fuses or not functional.is_worth_fusing(model.device, tokens * model.config.vocab_size):
            return "plain"
        if sharded:
            return "fused"
    try:
        logits_scale(model)
    except NotLinear as reason:
        if requested == "auto":
            return "fused"
        raise NotSupported(
            f"{OPTION}: got 'linear' for {reason}, expected a model whose logits are a linear output layer times "
            f"hidden states; use {OPTION}=auto"
        ) from reason
    return "linear"
