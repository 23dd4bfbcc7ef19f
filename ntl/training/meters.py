"""What is measured while training: means of the parts of the loss, and gradient norms of its terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ntl import distributed
from ntl.losses.objectives import Counts

if TYPE_CHECKING:
    from ntl.data import EncodedDataset, Layout
    from ntl.losses.objectives import Objective


def count_labels(objective: Objective, layout: Layout, data: EncodedDataset, rows: int = 256) -> Counts:
    """Return how many labels a data set has in training, and how many of them are number tokens.

    Per number token, λ·NTL weighs λ · labels / numbers relative to the cross-entropy, for each is a mean.

    Args:
        rows: of a batch; the result does not depend on it.
    """
    batches = (layout.train_batch(data.items[start : start + rows]) for start in range(0, len(data), rows))
    counts = [objective.count(batch["labels"]) for batch in batches]
    return Counts(*(sum(int(count[part]) for count in counts) for part in range(2)))


class TrainingMeter:
    """Means of the parts of the loss over the steps since the last log.

    The micro-batches of a step, and the processes' parts of each, add up to that step's mean.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.start: int | None = None  # step of the first addition, which is not 0 where a run is resumed

    def add(self, parts: Mapping[str, torch.Tensor], step: int) -> None:
        """Add the parts of a micro-batch's loss; `step` counts the steps that were done before."""
        if self.start is None:
            self.start = step
        for name, value in parts.items():
            self.sums[name] = self.sums.get(name, 0.0) + value.detach()

    def means(self, step: int) -> dict[str, float]:
        """Return the mean of each part over the steps up to `step`."""
        return {name: float(distributed.summed(total)) / (step - self.start) for name, total in self.sums.items()}


class ValidationMeter:
    """Means of the parts of the loss over the tokens of a split: number tokens for `number_parts`, else all labels."""

    def __init__(self, number_parts: tuple[str, ...]) -> None:
        self.number_parts = number_parts
        self.sums: dict[str, torch.Tensor] = {}
        self.tokens: dict[str, torch.Tensor] = {}

    def add(self, parts: Mapping[str, torch.Tensor], counts: Counts) -> None:
        """Add the parts of a batch's loss, which are means over `counts`."""
        for name, value in parts.items():
            tokens = counts.numbers if name in self.number_parts else counts.labels
            self.sums[name] = self.sums.get(name, 0.0) + value.detach() * tokens
            self.tokens[name] = self.tokens.get(name, 0) + tokens

    def means(self) -> dict[str, float]:
        """Return the mean of each part that has tokens."""
        totals = {name: float(distributed.summed(total)) for name, total in self.sums.items()}
        return {name: total / float(self.tokens[name]) for name, total in totals.items() if self.tokens[name]}


class GradientNorms:
    """Means, over the measured steps since the last log, of the gradient norm of each term of the loss.

    Names are `grad_<term>`, and `grad_<term>_over_ce` for the ratio to the norm of the cross-entropy's gradient.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.measured = 0

    def measure(self, terms: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
        """Add the norms for the terms of one batch; the graph is kept for the step's own backward pass."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        norms = {f"grad_{name}": gradient_norm(term, parameters) for name, term in terms.items()}
        if "grad_ce" in norms:
            others = [name for name in norms if name != "grad_ce"]
            norms |= {f"{name}_over_ce": norms[name] / norms["grad_ce"].clamp_min(1e-30) for name in others}
        for name, norm in norms.items():
            self.sums[name] = self.sums.get(name, 0.0) + norm
        self.measured += 1

    def means(self) -> dict[str, float]:
        """Return the mean of each norm and ratio."""
        return {name: float(total) / self.measured for name, total in self.sums.items()}


def gradient_norm(term: torch.Tensor, parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """Return the norm of the gradient of `term`, summed over processes, with respect to all parameters together."""
    gradients = torch.autograd.grad(
        term, parameters, retain_graph=True, allow_unused=True, materialize_grads=distributed.size() > 1
    )
    squares = [distributed.summed(g).float().square().sum() for g in gradients if g is not None]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def run_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a logged row that depend on the run alone; timings have a section of the record."""
    timings = ("runtime", "_per_second", "total_flos", "preparation_time")
    return {k: v for k, v in row.items() if isinstance(v, int | float) and not k.endswith(timings)}
