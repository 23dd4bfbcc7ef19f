"""Cross-entropy with the number token loss in one pass over the logits, or without ever holding all of them.

The plain functions leave the gradient to autograd, which for cross-entropy alone writes four matrices as large as the
logits, and one more for the columns of the number tokens. Here the gradient is written while the loss is computed:

    ∂total/∂x_ic = s_i P_ic − a_i q_ic + λ ∂ntl/∂x_ic

with P the softmax over the vocabulary, a_i = 1 / labels at valid rows and 0 elsewhere, q the target of the
cross-entropy, and s_i = a_i plus, with `reweigh`, what the mass on number tokens adds. The last two terms touch the
label's column and those of the number tokens; all else is one softmax, scaled while its rows are still in the cache.
What the number token loss is at one position is shared with the plain functions (`_distances`), and so is its
derivative by autograd, on tensors of (rows, number tokens).

* Logits given (`lm_head_weight` None): the gradient is the only matrix that is made; the logits are left as they are.
* Hidden states given: logits exist for a block of rows at a time, and the gradients of hidden states and of the head's
  weight are sums over blocks. Rows without a label are left out of the products.

Gradients are made in the forward pass and kept for the backward one, so there is no second derivative: asking for it
raises an error. With torch.no_grad only the losses are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ntl.losses import _distances as distances
from ntl.losses import _spans as spans
from ntl.losses.options import Counts, LossOptions
from ntl.numbers import IGNORE_INDEX, NumberVocabulary

# Elements of a block of logits. Smaller blocks stay in a smaller cache; each costs some thirty small operations.
BLOCK = 2**22
# Below this many rows the products of a block with the head's weight wait for memory.
LINEAR_ROWS = 256


@dataclass(frozen=True)
class _Targets:
    """What labels and vocabulary alone say; R rows, of which M have a number label, and K number tokens.

    Attributes:
        labels: (R,) column of each label, 0 where there is none.
        valid: (R,) whether there is one.
        label_count: scalar, denominator of the mean cross-entropy; its type is the one that is computed in.
        number_rows: (M,) rows whose label is a number token, ascending.
        number_values: (M,) the value of that token.
        number_weights: (M,) its weight in the mean number token loss, denominator included; None without that loss.
        ids: (K,) columns of the number tokens.
        values: (K,) their values.
    """

    labels: Tensor
    valid: Tensor
    label_count: Tensor
    number_rows: Tensor
    number_values: Tensor
    number_weights: Tensor | None
    ids: Tensor
    values: Tensor

    @property
    def rows(self) -> Tensor | None:
        """Rows worth a look if that is less than half of them, else None for all."""
        rows = self.valid.nonzero()[:, 0]
        return rows if 2 * len(rows) < len(self.valid) else None


def total_loss(
    inputs: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary | None,
    options: LossOptions,
    *,
    lm_head_weight: Tensor | None = None,
    bias: Tensor | None = None,
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    counts: Counts | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what `functional.total_loss` does, of logits, or of hidden states and the weight of a head.

    Args:
        inputs: logits (…, C), or with `lm_head_weight` hidden states (…, D).
        lm_head_weight: (C, D), of the head that makes logits of hidden states; `bias`: (C,).
        numbers: may be None where the options have neither a weight nor `sigma`.

    All is taken as checked.
    """
    dtype = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    targets = _targets(labels, numbers, options, loss_weights, ignore_index, counts, dtype)
    product = dtype
    device = inputs.device.type
    # Products in half precision are for accelerators: most processors take many times as long for them.
    if lm_head_weight is not None and device != "cpu" and dtype == torch.float32:
        product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    with torch.autocast(device, enabled=False):
        total, main, one_hot, ntl = _FusedLoss.apply(
            inputs.flatten(0, -2), lm_head_weight, bias, targets, options, product, torch.is_grad_enabled()
        )
    parts = {"ce": main} if options.sigma is None else {"ce": one_hot, "gce": main}
    return total, parts if options.weight is None else parts | {"ntl": ntl}


def _targets(
    labels: Tensor,
    numbers: NumberVocabulary | None,
    options: LossOptions,
    loss_weights: Tensor | None,
    ignore_index: int,
    counts: Counts | None,
    dtype: torch.dtype,
) -> _Targets:
    label_count, number_count = counts if counts is not None else (None, None)
    valid = labels != ignore_index
    labels = labels.masked_fill(~valid, IGNORE_INDEX).long()
    label_count = valid.sum() if label_count is None else label_count
    ids = values = number_rows = number_values = torch.empty(0, dtype=torch.long, device=labels.device)
    number_weights = None
    if options.weight is not None or options.sigma is not None:
        numbers = numbers.to(labels.device)
        ids, values = numbers.ids, numbers.values.to(dtype)
        index = numbers.lookup(labels)
        number_rows = (index.flatten() >= 0).nonzero()[:, 0]
        number_values = values[index.flatten()[number_rows]]
    if options.weight is not None:
        if loss_weights is None:
            number_weights = torch.ones_like(number_values)
        else:
            number_weights = loss_weights.flatten()[number_rows].to(dtype)
        number_count = number_weights.sum() if number_count is None else number_count
        if options.place_value != 1:
            place_weights = spans.place_weights(labels, numbers, options.place_value, dtype)
            number_weights = number_weights * place_weights.flatten()[number_rows]
        number_weights = number_weights / _denominator(number_count, number_values)
    return _Targets(
        labels=labels.flatten().clamp_min(0),
        valid=valid.flatten(),
        label_count=_denominator(label_count, labels).to(dtype),
        number_rows=number_rows,
        number_values=number_values,
        number_weights=number_weights,
        ids=ids,
        values=values,
    )


def _denominator(count: Tensor | float, like: Tensor) -> Tensor:
    count = torch.as_tensor(count, device=like.device)
    return torch.where(count == 0, 1, count)


class _FusedLoss(torch.autograd.Function):
    """(inputs (R, C) or (R, D), lm_head_weight, bias, …) → total, and without gradient: (G)CE, one-hot CE, NTL.

    `product` is the type of the products with the head's weight; `differentiated` says whether gradients are recorded.
    """

    @staticmethod
    def forward(
        ctx,
        inputs: Tensor,
        lm_head_weight: Tensor | None,
        bias: Tensor | None,
        targets: _Targets,
        options: LossOptions,
        product: torch.dtype,
        differentiated: bool,
    ) -> tuple[Tensor, ...]:
        wanted = tuple(differentiated and needed for needed in ctx.needs_input_grad[:3])
        # Half precision has a narrow range, and what scales the loss to stay in it comes with the backward pass: until
        # then the gradient is kept for the sum over labels.
        half = inputs.dtype if lm_head_weight is None else product
        ctx.scale = 1 / targets.label_count if half == torch.float16 else None
        ctx.types = [None if x is None else x.dtype for x in (inputs, lm_head_weight, bias)]
        rows = _RowLosses(targets, options, ctx.scale, differentiated=any(wanted))
        if lm_head_weight is None:
            ctx.gradients = (_from_logits(inputs, rows), None, None)
        else:
            ctx.gradients = _from_hidden(inputs, lm_head_weight, bias, rows, product, wanted)
        losses = rows.losses()
        ctx.mark_non_differentiable(*losses[1:])
        return losses

    @staticmethod
    def backward(ctx, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "got a second backward pass through a fused loss whose gradient has been handed on; call "
                "backward(retain_graph=True) the first time"
            )
        keep = _keeps_graph()
        gradients = ctx.gradients
        if not keep:
            ctx.gradients = None
        if ctx.scale is not None:
            scale = scale * ctx.scale
        # 1 is what a loss is differentiated with as a rule; to ask an accelerator would mean to wait for it
        one = scale.device.type == "cpu" and bool(scale == 1)
        if keep:
            gradients = [None if g is None else _scaled(g, scale) for g in gradients]
        elif not one:
            gradients = [None if g is None else _scaled(g, scale, out=g) for g in gradients]
        gradients = [None if g is None else g.to(dtype) for g, dtype in zip(gradients, ctx.types, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True
            with torch.enable_grad():
                gradients = [None if g is None else _NoSecondDerivative.apply(g.requires_grad_()) for g in gradients]
        return (*gradients, *[None] * 4)


def _scaled(gradient: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    # a scalar tensor of a wider type does not widen the product, and is not rounded before it
    return torch.mul(gradient, scale.to(torch.float64) if gradient.dtype == torch.float64 else scale.float(), out=out)


def _keeps_graph() -> bool:
    """Whether this backward pass leaves the graph for another (retain_graph); yes where torch does not say."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else ask()


class _NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, _: Tensor) -> None:
        raise RuntimeError(
            "got a second derivative of a fused loss, expected first ones only: its gradient is a constant to "
            "autograd; use implementation='plain'"
        )


class _RowLosses:
    """The losses of rows as they come, block by block, and the gradient of each block."""

    def __init__(self, targets: _Targets, options: LossOptions, scale: Tensor | None, *, differentiated: bool) -> None:
        """`scale`: what the backward pass multiplies the gradients by; None if they are to be whole at once."""
        self.targets, self.options, self.differentiated = targets, options, differentiated
        like = {"dtype": targets.label_count.dtype, "device": targets.labels.device}
        rows = len(targets.labels)
        self.main = torch.zeros(rows, **like)
        self.one_hot = torch.zeros(rows, **like) if options.sigma is not None else self.main
        self.ntl = torch.zeros(len(targets.number_rows), **like)
        unit = 1 / targets.label_count if scale is None else torch.ones((), **like)
        self.label_weights = targets.valid * unit  # a
        if targets.number_weights is not None:
            self.number_weights = (
                options.weight * targets.number_weights * (1 if scale is None else targets.label_count)
            )
            if options.reweigh:
                self.largest = distances.largest_distance(targets.values, options)

    def losses(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return total, (G)CE, one-hot CE, and NTL: scalars."""
        targets, weight = self.targets, self.options.weight
        main = self.main.sum() / targets.label_count
        one_hot = main.clone() if self.one_hot is self.main else self.one_hot.sum() / targets.label_count
        ntl = torch.zeros_like(main)
        if targets.number_weights is not None:
            ntl = (self.ntl * targets.number_weights).sum()
        total = main + weight * ntl if weight else main.clone()
        return total, main, one_hot, ntl

    def add(self, logits: Tensor, out: Tensor, rows: slice | Tensor, numbers: slice, local: Tensor) -> None:
        """Compute a block's losses, and leave the gradient of its logits in `out`.

        Args:
            logits, out: (B, C), of the type that is computed in; two tensors.
            rows: of all rows, those of the block.
            numbers: of all number rows, those in the block; `local`: their (M',) positions in it.
        """
        targets, options = self.targets, self.options
        smoothing = options.label_smoothing
        labels, valid, weights = targets.labels[rows], targets.valid[rows], self.label_weights[rows]
        label_scores = logits.gather(1, labels[:, None])[:, 0]
        torch.softmax(logits, -1, out=out)
        p = out.gather(1, labels[:, None])[:, 0]
        one_hot = -p.log()
        # so improbable that p has lost its precision
        if bool((lost := p < 1e3 * torch.finfo(p.dtype).tiny).any()):
            one_hot[lost] = logits[lost].logsumexp(-1) - label_scores[lost]
        main = one_hot
        scale, columns = weights, None
        q_label = weights  # a·q at the label
        if len(local) and (options.sigma is not None or targets.number_weights is not None):
            where = (local[:, None], targets.ids)
            scores = logits[where]
            log_normaliser = label_scores[local] + one_hot[local]
            columns = torch.zeros_like(scores)
            target = targets.number_values[numbers]
            if options.sigma is not None:
                q = distances.gaussian(targets.values, target, options.sigma)
                # 0 · log 0 is 0: far tokens have no weight left, and a model may exclude them with a score of −∞
                log_p = (scores - log_normaliser[:, None]).masked_fill(q == 0, 0.0)
                main = one_hot.index_copy(0, local, -(q * log_p).sum(-1))
                columns -= (1 - smoothing) * weights[local, None] * q
                q_label = weights.index_fill(0, local, 0.0)
            if targets.number_weights is not None:
                losses, by_scores, by_normaliser = self._number_terms(scores, log_normaliser, numbers, target)
                self.ntl[numbers] = losses
                if by_scores is not None:
                    columns += by_scores
                if by_normaliser is not None:
                    scale = weights.index_add(0, local, by_normaliser)
        if smoothing:
            uniform = label_scores + one_hot - logits.mean(-1)  # −(mean of log P)
            main = (1 - smoothing) * main + smoothing * uniform
        self.main[rows] = torch.where(valid, main, 0.0)
        if options.sigma is not None:
            self.one_hot[rows] = torch.where(valid, one_hot, 0.0)
        if not self.differentiated:
            return
        out.mul_(scale[:, None])
        if smoothing:
            out.sub_(weights[:, None] * (smoothing / logits.shape[1]))
        out.scatter_add_(1, labels[:, None], ((smoothing - 1) * q_label)[:, None])
        if columns is not None and (options.sigma is not None or options.weight):
            out[where] += columns

    def _number_terms(
        self, scores: Tensor, log_normaliser: Tensor, numbers: slice, target: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return number token losses (M',), and λ times their derivatives by scores (M', K) and normaliser (M',)."""
        targets, options = self.targets, self.options
        wanted = self.differentiated and options.weight > 0
        with torch.set_grad_enabled(wanted):
            inputs = [x.detach().requires_grad_(wanted) for x in (scores, log_normaliser)]
            losses = distances.token_loss(inputs[0], targets.values, target, options)
            if options.reweigh:
                losses = distances.reweigh(losses, inputs[0].logsumexp(-1) - inputs[1], self.largest)
        if not wanted:
            return losses, None, None
        inputs = inputs if options.reweigh else inputs[:1]
        gradients = torch.autograd.grad(losses, inputs, self.number_weights[numbers])
        return losses.detach(), gradients[0], gradients[1] if options.reweigh else None


def _from_logits(logits: Tensor, losses: _RowLosses) -> Tensor | None:
    """Go through given logits (R, C); return their gradient if it is wanted."""
    targets = losses.targets
    dtype = targets.label_count.dtype
    rows = targets.rows
    gradient = None
    if losses.differentiated:
        gradient = torch.empty_like(logits) if rows is None else torch.zeros_like(logits)
    direct = gradient is not None and rows is None and logits.dtype == dtype  # written where it stays
    blocks = list(_blocks(targets, rows, logits.shape[1], 1))
    size = max((size for *_, size in blocks), default=0)
    buffer = None if direct else logits.new_empty(size, logits.shape[1], dtype=dtype)
    for at, numbers, local, size in blocks:
        block = logits[at].to(dtype)
        out = gradient[at] if direct else buffer[:size]
        losses.add(block, out, at, numbers, local)
        if gradient is not None and not direct:
            gradient[at] = out.to(logits.dtype)
    return gradient


def _from_hidden(
    hidden: Tensor,
    lm_head_weight: Tensor,
    bias: Tensor | None,
    losses: _RowLosses,
    product: torch.dtype,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Go through hidden states (R, D) by blocks of logits; return the gradients that are wanted, of the head's in the
    type that is computed in."""
    targets = losses.targets
    dtype = targets.label_count.dtype
    weights = lm_head_weight.to(product)
    columns = len(lm_head_weight)
    rows = targets.valid.nonzero()[:, 0]
    whole = len(rows) == len(hidden)
    blocks = list(_blocks(targets, None if whole else rows, columns, LINEAR_ROWS))
    size = max((size for *_, size in blocks), default=0)
    like = {"dtype": dtype, "device": hidden.device}
    by_hidden = (torch.empty_like if whole else torch.zeros_like)(hidden) if wanted[0] else None
    by_weight = (torch.empty if blocks else torch.zeros)(lm_head_weight.shape, **like) if wanted[1] else None
    by_bias = torch.zeros(columns, **like) if wanted[2] else None
    logits = torch.empty(size, columns, dtype=product, device=hidden.device)
    out = torch.empty(size, columns, **like)
    for index, (at, numbers, local, size) in enumerate(blocks):
        states = hidden[at].to(product)
        block = torch.mm(states, weights.T, out=logits[:size])
        if bias is not None:
            block += bias.to(product)
        gradient = out[:size]
        losses.add(block.to(dtype), gradient, at, numbers, local)
        if not losses.differentiated:
            continue
        if by_bias is not None:
            by_bias += gradient.sum(0)
        gradient = gradient.to(product)
        if by_hidden is not None:
            by_hidden[at] = (gradient @ weights).to(hidden.dtype)
        if by_weight is None:
            continue
        if product == dtype:
            by_weight.addmm_(gradient.T, states, beta=min(index, 1))  # the first one overwrites what was not set
        elif index:
            by_weight += gradient.T @ states
        else:
            by_weight.copy_(gradient.T @ states)
    return by_hidden, by_weight, by_bias


def _blocks(
    targets: _Targets, rows: Tensor | None, columns: int, least: int
) -> Iterator[tuple[slice | Tensor, slice, Tensor, int]]:
    """Divide `rows` (all if None) into blocks; yield rows, their number rows (see `_RowLosses.add`), how many rows."""
    count = len(targets.labels) if rows is None else len(rows)
    # positions of the number rows among the rows: those without a label are no number rows either
    places = targets.number_rows if rows is None else torch.searchsorted(rows, targets.number_rows)
    step = max(1, least, BLOCK // max(1, columns))
    starts = range(0, count, step)
    edges = torch.searchsorted(places, torch.tensor([*starts, count], device=places.device)).tolist()
    for start, low, high in zip(starts, edges, edges[1:], strict=False):
        stop = min(start + step, count)
        at = slice(start, stop) if rows is None else rows[start:stop]
        yield at, slice(low, high), places[low:high] - start, stop - start
