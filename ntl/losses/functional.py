"""The losses as functions of tensors. Nothing here has state; every definition stands in a docstring.

Notation: V is the set of number tokens j with values v_j; y is the value of a label that is a number token, N the
positions with such a label; p is the softmax over the *number tokens only*, P the softmax over the whole vocabulary.

Shapes and types, the same everywhere: logits (…, C) with C columns (more than the tokenizer has tokens is fine),
labels (…) integer and already aligned with the logits, loss_weights (…) ≥ 0. Half and single precision are computed in
float32, float64 in float64; losses come in that type and gradients in the type of the logits. Where a mean has
nothing to average the loss is exactly 0, with a gradient path of zeros. Bad options and ids raise ValueError.

Source: "Regress, Don't Guess: a regression-like loss on number tokens for language models" (ICML 2025), section 3;
`reweigh`, `squash` and the number-level loss after the package ntloss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl.losses import _checks as check
from ntl.losses import _distances as distances
from ntl.losses import _spans as spans
from ntl.losses import fused
from ntl.losses.options import KINDS, Counts, CrossEntropyWithNTLOptions, LossOptions
from ntl.numbers import IGNORE_INDEX, NumberVocabulary

IMPLEMENTATIONS = ("auto", "plain", "fused")
# From so many logits on the fused implementation is the faster one on a processor.
FUSED_FROM = 2**20


def number_token_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    *,
    kind: str | Callable[[Tensor, Tensor], Tensor] = "was",
    sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    place_value: float = 1.0,
    reduction: str = "mean",
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
) -> Tensor:
    """Return the Number Token Loss.

    kind="was": ℓ = Σ_j p_j |v_j − y|, the Wasserstein-1 distance of p to the label;
    kind="mse", "mae", "huber" (δ = 1) or a callable d(prediction, target), elementwise: ℓ = d(Σ_j p_j v_j, y).

    Args:
        sigma: ("was" only) compare p with a Gaussian target g instead, g_j ∝ exp(−(v_j − y)² / 2σ²), Σ_j g_j = 1:
            ℓ = ∫ |F_p(v) − F_g(v)| dv, F the cumulative distributions over the values. This is NTL-WAS beside GCE.
        reweigh: ℓ·m + 1.01·D·(1 − m), m = Σ_j P_j the probability on number tokens, D the largest distance that two
            number tokens have.
        squash: s ≥ 1 ("was" only): distances between different values become 1 + (s − 1)(d − d_min)/(d_max − d_min),
            with d_min and d_max the smallest and largest of the vocabulary; the nearest wrong value costs 1, the
            farthest s.
        place_value: b ≥ 1: a label at decimal place k of its number (units 0, tens 1, first decimal −1) weighs b^k,
            scaled so that the weights of one number have mean 1.
        reduction: "mean": Σ w ℓ / Σ w over N; "sum": Σ w ℓ; "none": w ℓ, of the labels' shape, 0 outside N.
        loss_weights: w, 1 if not given. Place weights multiply w in the numerator only.
        count: replaces Σ w in the mean: the number of number tokens in the whole accumulated batch.

    Returns:
        A scalar, or (…) for reduction="none".
    """
    options = LossOptions(kind=kind, sigma=sigma, reweigh=reweigh, squash=squash, place_value=place_value)
    return _number_token_loss(logits, labels, numbers, options, reduction, loss_weights, ignore_index, count)


def _number_token_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    options: LossOptions,
    reduction: str,
    loss_weights: Tensor | None,
    ignore_index: int,
    count: Tensor | float | None,
) -> Tensor:
    """Return `number_token_loss`."""
    check.check_choice("reduction", reduction, check.REDUCTIONS)
    check.check_tensors(logits, labels, numbers, ignore_index, loss_weights)
    numbers = numbers.to(logits.device)
    labels = labels.masked_fill(labels == ignore_index, IGNORE_INDEX)
    index = numbers.lookup(labels)
    mask = index >= 0
    scores = _number_scores(logits, numbers).masked_fill(~mask[..., None], 0.0)
    values = numbers.values.to(scores.dtype)
    target = values[index.clamp_min(0)]
    loss = distances.token_loss(scores, values, target, options)
    if options.reweigh:
        loss = _reweigh(loss, logits, scores, mask, distances.largest_distance(values, options))
    if options.place_value != 1:
        loss = loss * spans.place_weights(labels, numbers, options.place_value, loss.dtype)
    return _reduce(loss, mask, reduction, loss_weights, count)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary | None = None,
    *,
    sigma: float | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
    return_parts: bool = False,
    implementation: str = "auto",
) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
    """Return the cross-entropy with a one-hot target, or with `sigma` the Gaussian cross-entropy (GCE).

    ℓ = −Σ_c q_c log P_c over the whole vocabulary; q is one-hot on the label, except that with `sigma` a label that is
    a number token with value y has q_j ∝ exp(−(v_j − y)² / 2σ²) on the number tokens. With label smoothing ε, q is
    (1 − ε) q + ε / C.

    Args:
        numbers: needed with `sigma` only.
        reduction: "mean" and "sum" over the labels that are not ignored, or "none".
        count: the denominator of the mean: the labels of the whole accumulated batch; by default those given.
        return_parts: return also the detached parts: "ce", and with `sigma` "gce" and the "ce" of the unsmoothed
            one-hot target beside it.
        implementation: see `cross_entropy_with_ntl`; reduction="none" is for the plain one.
    """
    check.check_choice("reduction", reduction, check.REDUCTIONS)
    options = LossOptions(sigma=sigma, label_smoothing=label_smoothing)
    if sigma is not None and numbers is None:
        raise ValueError(f"got sigma={sigma!r} and no numbers, expected a NumberVocabulary: pass `numbers`")
    check.check_tensors(logits, labels, numbers, ignore_index)
    if _is_fused(implementation, logits, count, reduction=reduction):
        _check_count(count, reduction)
        label_count = 1.0 if reduction == "sum" else count
        counts = None if label_count is None else Counts(label_count, 1.0)
        total, parts = fused.total_loss(logits, labels, numbers, options, ignore_index=ignore_index, counts=counts)
        return (total, parts) if return_parts else total
    valid = labels != ignore_index
    labels = labels.masked_fill(~valid, IGNORE_INDEX).long()
    logits = logits.to(_computing_dtype(logits))
    if sigma is None:
        loss = F.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=label_smoothing
        ).view(labels.shape)
        total = _reduce(loss, valid, reduction, None, count)
        return (total, {"ce": total.detach().clone()}) if return_parts else total

    numbers = numbers.to(logits.device)
    log_p = logits.log_softmax(-1)
    one_hot = -log_p.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    index = numbers.lookup(labels)
    values = numbers.values.to(logits.dtype)
    q = distances.gaussian(values, values[index.clamp_min(0)], sigma)
    # 0 · log 0 is 0: far tokens have no weight left, and a model may exclude them with a score of −∞
    gaussian = -(q * log_p.index_select(-1, numbers.ids).masked_fill(q == 0, 0.0)).sum(-1)
    loss = torch.where(index >= 0, gaussian, one_hot)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss - label_smoothing * log_p.mean(-1)
    total = _reduce(loss, valid, reduction, None, count)
    if not return_parts:
        return total
    return total, {
        "ce": _reduce(one_hot.detach(), valid, reduction, None, count),
        "gce": total.detach().clone(),
    }


def gaussian_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    *,
    sigma: float = 1.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
) -> Tensor:
    """Return the Gaussian cross-entropy: `cross_entropy` with standard deviation `sigma`, in units of the values."""
    check.check_sigma(sigma)
    return cross_entropy(
        logits,
        labels,
        numbers,
        sigma=sigma,
        label_smoothing=label_smoothing,
        reduction=reduction,
        ignore_index=ignore_index,
        count=count,
    )


def cross_entropy_with_ntl(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    kind: str | Callable[[Tensor, Tensor], Tensor] = "was",
    weight: float = 0.3,
    *,
    sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    place_value: float = 1.0,
    label_smoothing: float = 0.0,
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    counts: Counts | None = None,
    return_parts: bool = False,
    implementation: str = "auto",
) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
    """Return CE + λ·NTL, the mean of `cross_entropy` over the labels and of `number_token_loss` over the numbers.

    Args:
        weight: λ. At 0 the total and its gradient are those of the cross-entropy, bit by bit.
        sigma: smooths the target of both terms: GCE + λ·NTL-WAS.
        loss_weights: weights of the positions in the number token loss; the cross-entropy is not weighted.
        counts: denominators of the two means over the whole accumulated batch; by default those of this call.
        return_parts: return (total, parts) with the detached means "ce" and "ntl" (without λ), and "gce" with `sigma`.
        implementation: "plain" leaves the gradient to autograd; "fused" writes it in one pass over the logits (module
            `fused`), which takes less time and memory and gives the same but for rounding. It is not made for a
            callable `kind`, for derivatives by `loss_weights` or counts, or for second derivatives. "auto" is "fused"
            for many logits on a processor, where it can be, and "plain" otherwise.
    """
    options = CrossEntropyWithNTLOptions(
        kind=kind,
        weight=weight,
        sigma=sigma,
        reweigh=reweigh,
        squash=squash,
        place_value=place_value,
        label_smoothing=label_smoothing,
    )
    total, parts = total_loss(
        logits,
        labels,
        numbers,
        options,
        loss_weights=loss_weights,
        ignore_index=ignore_index,
        counts=counts,
        implementation=implementation,
    )
    return (total, parts) if return_parts else total


def total_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    options: LossOptions,
    *,
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    counts: Counts | None = None,
    implementation: str = "auto",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the total and its parts as `cross_entropy_with_ntl` does, with its options as one object.

    Without a weight among the options it is the total of `cross_entropy`.
    """
    label_count, number_count = counts if counts is not None else (None, None)
    if _is_fused(implementation, logits, loss_weights, label_count, number_count, kind=options.kind):
        check.check_tensors(logits, labels, numbers, ignore_index, loss_weights)
        return fused.total_loss(
            logits, labels, numbers, options, loss_weights=loss_weights, ignore_index=ignore_index, counts=counts
        )
    total, parts = cross_entropy(
        logits,
        labels,
        numbers,
        sigma=options.sigma,
        label_smoothing=options.label_smoothing,
        ignore_index=ignore_index,
        count=label_count,
        return_parts=True,
        implementation="plain",
    )
    if options.weight is None:
        return total, parts
    with torch.set_grad_enabled(torch.is_grad_enabled() and options.weight > 0):
        ntl = _number_token_loss(logits, labels, numbers, options, "mean", loss_weights, ignore_index, number_count)
    if options.weight > 0:
        total = total + options.weight * ntl
    return total, parts | {"ntl": ntl.detach()}


def linear_cross_entropy_with_ntl(
    hidden: Tensor,
    lm_head_weight: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    kind: str = "was",
    weight: float | None = 0.3,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    sigma: float | None = None,
    reweigh: bool = False,
    squash: float | None = None,
    place_value: float = 1.0,
    label_smoothing: float = 0.0,
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    counts: Counts | None = None,
    return_parts: bool = False,
) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
    """Return `cross_entropy_with_ntl` of the logits scale · hidden · Wᵀ + bias, which are never held all at once.

    W is `lm_head_weight`. Memory is needed for a few hundred rows of logits and for the gradients. Those of hidden
    states and W are made in the forward pass, summed in float32 for half precision. Rows without a label cost nothing.
    Under torch.autocast products are taken in its type on accelerators, and in float32 on processors.

    Args:
        hidden: (…, D), what the model's output layer is given.
        lm_head_weight: (C, D), its weight, which may be shared with the embeddings.
        labels: (…), aligned with the hidden states.
        weight: λ; None leaves the number token loss out and is the cross-entropy alone, the same one as at 0.
        bias: (C,).
        scale: a T5 with tied embeddings multiplies its hidden states by d_model**-0.5.
    """
    options = LossOptions(
        kind=kind,
        weight=weight,
        sigma=sigma,
        reweigh=reweigh,
        squash=squash,
        place_value=place_value,
        label_smoothing=label_smoothing,
    )
    total, parts = linear_total_loss(
        hidden,
        lm_head_weight,
        labels,
        numbers,
        options,
        bias=bias,
        scale=scale,
        loss_weights=loss_weights,
        ignore_index=ignore_index,
        counts=counts,
    )
    return (total, parts) if return_parts else total


def linear_total_loss(
    hidden: Tensor,
    lm_head_weight: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    options: LossOptions,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    counts: Counts | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the total and its parts as `linear_cross_entropy_with_ntl` does, with its options as one object."""
    check.check_vocabulary(numbers)
    _is_fused("fused", hidden, loss_weights, *(counts or ()), kind=options.kind)  # raises where it cannot be
    check.check_head(hidden, lm_head_weight, bias, labels, numbers, ignore_index, loss_weights)
    return fused.total_loss(
        hidden if scale == 1 else hidden * scale,
        labels,
        numbers,
        options,
        lm_head_weight=lm_head_weight,
        bias=bias,
        loss_weights=loss_weights,
        ignore_index=ignore_index,
        counts=counts,
    )


def number_level_loss(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberVocabulary,
    *,
    float_level: bool = False,
    reweigh: bool = False,
    max_number_length: int | None = None,
    reduction: str = "mean",
    loss_weights: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    count: Tensor | float | None = None,
) -> Tensor:
    """Return the symmetric MAPE between whole numbers: ℓ = |ŷ − y| / (|ŷ| + |y| + ε), ε the type's resolution.

    A number is a run of digit labels; y is its value, and ŷ = Σ_i 10^(n−1−i) Σ_j p_ij v_j the number that the expected
    values of its n digits make up. ℓ stands at the first digit, as do the weight w and the m of `reweigh` (D = 1).
    The decimal point does not enter: ℓ is free of scale.

    Args:
        labels: (B, T) or (T,).
        numbers: digits alone (`digits_only=True`).
        float_level: a single `.` between digits belongs to the number; otherwise it ends it.
        max_number_length: digits farther than this from the last one weigh as much as the last within it (as ntloss
            does, with 20); None sets no limit.
        reduction, loss_weights, count: as for `number_token_loss`, over numbers instead of number tokens.
    """
    check.check_choice("reduction", reduction, check.REDUCTIONS)
    check.check_flag("float_level", float_level)
    check.check_flag("reweigh", reweigh)
    check.check_digits(numbers)
    check.check_tensors(logits, labels, numbers, ignore_index, loss_weights)
    numbers = numbers.to(logits.device)
    labels = labels.masked_fill(labels == ignore_index, IGNORE_INDEX)
    index = numbers.lookup(labels)
    mask = index >= 0
    scores = _number_scores(logits, numbers).masked_fill(~mask[..., None], 0.0)
    values = numbers.values.to(scores.dtype)
    expected = (scores.softmax(-1) * values).sum(-1)

    joined = spans.before(mask)
    if float_level:
        joined = joined | (spans.before(spans.is_dot(labels, numbers)) & spans.before(mask, 2))
    start = mask & ~joined
    number = spans.number_of(start)
    # The first digit weighs 1, not 10^(n−1): the loss is free of scale, and long numbers must not overflow.
    position = spans.running(mask) - spans.per_number(spans.running(mask) * start, number)[number]
    length = spans.per_number(mask.long(), number)[number]
    exponent, first = length - 1 - position, length - 1
    if max_number_length is not None:
        exponent, first = exponent.clamp_max(max_number_length - 1), first.clamp_max(max_number_length - 1)
    scale = torch.where(mask, 10.0 ** (exponent - first).to(expected.dtype), 0.0)
    predicted = spans.per_number(expected * scale, number)
    true = spans.per_number(values[index.clamp_min(0)] * scale, number)
    loss = (predicted - true).abs() / (predicted.abs() + true.abs() + torch.finfo(true.dtype).eps)
    loss = loss[number]
    if reweigh:
        loss = _reweigh(loss, logits, scores, start, torch.ones((), dtype=loss.dtype, device=loss.device))
    return _reduce(loss, start, reduction, loss_weights, count)


def expected_numbers(logits: Tensor, numbers: NumberVocabulary) -> tuple[Tensor, Tensor]:
    """Return, for every position, the expected value Σ_j p_j v_j and the probability m on number tokens; both (…)."""
    numbers = numbers.to(logits.device)
    scores = _number_scores(logits, numbers)
    mass = (scores.logsumexp(-1) - logits.to(scores.dtype).logsumexp(-1)).exp()
    return (scores.softmax(-1) * numbers.values.to(scores.dtype)).sum(-1), mass


def is_worth_fusing(device: torch.device, elements: int) -> bool:
    """Return whether another implementation than the plain one is faster for so many logits.

    On accelerators torch's own kernels are fast already; where logits are few nothing is gained.
    """
    return device.type == "cpu" and elements >= FUSED_FROM


def _is_fused(
    implementation: str,
    logits: Tensor,
    *constants: Tensor | float | None,
    kind: str | Callable[[Tensor, Tensor], Tensor] = "was",
    reduction: str = "mean",
) -> bool:
    """Return whether the fused implementation is to be used.

    Raises:
        ValueError: it is asked for and cannot be.
    """
    check.check_choice("implementation", implementation, IMPLEMENTATIONS)
    if implementation == "plain":
        return False
    unable = None
    if callable(kind):
        unable = ("a callable kind", f"one of {', '.join(KINDS)}")
    elif reduction == "none":
        unable = ("reduction='none'", "'mean' or 'sum'")
    elif any(isinstance(x, Tensor) and x.requires_grad for x in constants):
        unable = ("loss_weights or counts with requires_grad", "constants")
    if implementation == "fused":
        if unable:
            raise ValueError(
                f"got {unable[0]} for the fused implementation, expected {unable[1]}: use implementation='plain'"
            )
        return True
    large = is_worth_fusing(logits.device, logits.numel())
    # a compiler fuses the plain one by itself, and subclasses (as of distributed tensors) have their own kernels
    return large and unable is None and type(logits) is Tensor and not torch.compiler.is_compiling()


def _computing_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _number_scores(logits: Tensor, numbers: NumberVocabulary) -> Tensor:
    """Return the logits of the number tokens, (…, K), in the type that is computed in."""
    return logits.index_select(-1, numbers.ids).to(_computing_dtype(logits))


def _reweigh(loss: Tensor, logits: Tensor, scores: Tensor, mask: Tensor, largest: Tensor) -> Tensor:
    """Return ℓ·m + 1.01·D·(1 − m); meaningless outside `mask`."""
    log_mass = scores.logsumexp(-1) - logits.to(scores.dtype).logsumexp(-1)
    log_mass = log_mass.masked_fill(~mask, 0.0)  # elsewhere `scores` are blank, and exp could overflow
    return distances.reweigh(loss, log_mass, largest)


def _reduce(
    loss: Tensor, mask: Tensor, reduction: str, loss_weights: Tensor | None, count: Tensor | float | None
) -> Tensor:
    """Reduce losses (…) over `mask`; see `number_token_loss`."""
    _check_count(count, reduction)
    loss = torch.where(mask, loss, 0.0)
    weights = mask if loss_weights is None else loss_weights.to(loss) * mask
    if loss_weights is not None:
        loss = loss * weights
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    total = torch.as_tensor(weights.sum() if count is None else count, device=loss.device)
    return loss.sum() / torch.where(total == 0, 1, total)


def _check_count(count: Tensor | float | None, reduction: str) -> None:
    if count is not None and reduction != "mean":
        raise ValueError(f"got count with reduction={reduction!r}, expected 'mean': only a mean divides by a count")
