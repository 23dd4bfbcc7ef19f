"""The definitions of the losses, written out with loops for the tests: slow, plain, and sharing no code with `ntl`."""

import itertools
import math

import torch

from ntl.numbers import NumberVocabulary

DOT = 13
WIDTH = 24  # columns of the logits: more than the 22 tokens of the vocabularies below
# Digits out of order and apart, as in a real vocabulary.
DIGIT_OF = {4: 3, 6: 0, 7: 9, 8: 1, 10: 7, 11: 5, 15: 2, 16: 8, 18: 6, 20: 4}
ID_OF = {str(digit): token for token, digit in DIGIT_OF.items()} | {".": DOT}
# Numbers of several digits, uneven gaps, decimals, and one value under two ids.
VALUE_OF = {2: 10.0, 4: 3.0, 6: 0.0, 7: 2018.0, 8: 1.5, 10: 3.0, 11: 45.0, 20: 100.0}


def vocabulary(value_of=DIGIT_OF, dots=(DOT,), vocab_size=22):
    ids = sorted(value_of)
    values = torch.tensor([float(value_of[token]) for token in ids], dtype=torch.float64)
    return NumberVocabulary(ids=torch.tensor(ids), values=values, vocab_size=vocab_size, dot_ids=dots)


def spell(text, length=None, pad=-100):
    """Token ids of a text of digits and dots; anything else is an ordinary word."""
    ids = [ID_OF.get(char, 0) for char in text]
    return ids + [pad] * ((length or len(ids)) - len(ids))


def batch(seed=0, rows=3, length=9, value_of=DIGIT_OF, scale=2.0, dtype=torch.float64):
    """Logits with gradient and labels of which most are numbers, some words, some ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64) * scale).to(dtype)
    choices = torch.tensor([*sorted(value_of), *sorted(value_of), 0, 1, 3, DOT, -100])
    labels = choices[torch.randint(len(choices), (rows, length), generator=generator)]
    return logits.requires_grad_(), labels


def probabilities(row, ids):
    top = max(float(row[i].detach()) for i in ids)
    powers = [torch.exp(row[i] - top) for i in ids]
    return [power / sum(powers) for power in powers]


def gaussian(values, y, sigma):
    weights = [math.exp(-((v - y) ** 2) / (2 * sigma**2)) for v in values]
    return [weight / sum(weights) for weight in weights]


def squashed(a, b, values, squash):
    gaps = [abs(v - w) for v in values for w in values if v != w]
    if a == b:
        return 0.0
    if max(gaps) == min(gaps):
        return 1.0
    return 1 + (abs(a - b) - min(gaps)) * (squash - 1) / (max(gaps) - min(gaps))


def lp(kind, prediction, target):
    gap = abs(prediction - target)
    if kind == "mse":
        return gap**2
    if kind == "mae":
        return gap
    return gap**2 / 2 if gap <= 1 else gap - 0.5


def at_position(row, label, value_of, kind="was", sigma=None, squash=None, reweigh=False):
    """The number token loss at one position whose label is a number."""
    ids = sorted(value_of)
    values = [value_of[i] for i in ids]
    y = value_of[label]
    p = probabilities(row, ids)
    largest = max(values) - min(values)
    if kind == "was" and sigma is not None:
        g = gaussian(values, y, sigma)
        steps = sorted(set(values))
        loss = 0.0
        for low, high in itertools.pairwise(steps):
            below_p = sum(p[k] for k in range(len(ids)) if values[k] <= low)
            below_g = sum(g[k] for k in range(len(ids)) if values[k] <= low)
            loss = loss + abs(below_p - below_g) * (high - low)
    elif kind == "was" and squash is not None:
        loss = sum(p[k] * squashed(values[k], y, values, squash) for k in range(len(ids)))
        largest = max(squashed(v, w, values, squash) for v in values for w in values)
    elif kind == "was":
        loss = sum(p[k] * abs(values[k] - y) for k in range(len(ids)))
    else:
        loss = lp(kind, sum(p[k] * values[k] for k in range(len(ids))), y)
        largest = lp(kind, largest, 0.0)
    if reweigh:
        everything = probabilities(row, range(len(row)))
        mass = sum(everything[i] for i in ids)
        loss = loss * mass + 1.01 * largest * (1 - mass)
    return loss


def runs(labels, value_of=DIGIT_OF, dots=(DOT,)):
    """Numbers in one row of labels as lists of (position, place): digits, at most one dot with digits around it."""
    found, t = [], 0
    while t < len(labels):
        if labels[t] not in value_of:
            t += 1
            continue
        whole = []
        while t < len(labels) and labels[t] in value_of:
            whole.append(t)
            t += 1
        fraction = []
        if t + 1 < len(labels) and labels[t] in dots and labels[t + 1] in value_of:
            t += 1
            while t < len(labels) and labels[t] in value_of:
                fraction.append(t)
                t += 1
        places = list(range(len(whole) - 1, -1, -1)) + [-1 - k for k in range(len(fraction))]
        found.append(list(zip(whole + fraction, places, strict=True)))
    return found


def number_token_loss(logits, labels, value_of=DIGIT_OF, *, place_value=1.0, reduction="mean", weights=None, **options):
    """The loss over a batch, position by position."""
    losses = torch.zeros(labels.shape, dtype=torch.float64)
    total_weight = 0.0
    for b, row in enumerate(labels.tolist()):
        for number in runs(row, value_of):
            shares = [place_value**place for _, place in number]
            for (t, _), share in zip(number, shares, strict=True):
                w = 1.0 if weights is None else float(weights[b, t])
                total_weight += w
                losses[b, t] = (
                    at_position(logits[b, t], row[t], value_of, **options) * w * share * len(number) / sum(shares)
                )
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / total_weight


def cross_entropy(logits, labels, sigma=None, label_smoothing=0.0, value_of=DIGIT_OF, reduction="mean"):
    """(Gaussian) cross-entropy over a batch, from a target written out over the whole vocabulary."""
    losses = torch.zeros(labels.shape, dtype=torch.float64)
    for b, row in enumerate(labels.tolist()):
        for t, label in enumerate(row):
            if label == -100:
                continue
            target = [0.0] * logits.shape[-1]
            if sigma is not None and label in value_of:
                ids = sorted(value_of)
                for i, weight in zip(ids, gaussian([value_of[i] for i in ids], value_of[label], sigma), strict=True):
                    target[i] = weight
            else:
                target[label] = 1.0
            p = probabilities(logits[b, t], range(len(target)))
            for q, probability in zip(target, p, strict=True):
                q = q * (1 - label_smoothing) + label_smoothing / len(target)
                losses[b, t] = losses[b, t] - q * torch.log(probability)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (labels != -100).sum()


def number_level_loss(logits, labels, *, float_level=False, reweigh=False, reduction="mean", weights=None):
    """The symmetric error of whole numbers; the loss stands at the first digit of each."""
    losses = torch.zeros(labels.shape, dtype=torch.float64)
    total_weight = 0.0
    ids = sorted(DIGIT_OF)
    for b, row in enumerate(labels.tolist()):
        numbers, current = [], []
        for t, label in enumerate([*row, -1]):
            point = (
                float_level
                and label == DOT
                and bool(current)
                and current[-1] == t - 1
                and t + 1 < len(row)
                and row[t + 1] in DIGIT_OF
            )
            if label in DIGIT_OF:
                current.append(t)
            elif current and not point:
                numbers.append(current)
                current = []
        for digits in numbers:
            true = float("".join(str(DIGIT_OF[row[t]]) for t in digits))
            predicted = 0.0
            for t in digits:
                p = probabilities(logits[b, t], ids)
                predicted = predicted * 10 + sum(q * DIGIT_OF[i] for q, i in zip(p, ids, strict=True))
            loss = abs(predicted - true) / (predicted + true)
            if reweigh:
                everything = probabilities(logits[b, digits[0]], range(logits.shape[-1]))
                mass = sum(everything[i] for i in ids)
                loss = loss * mass + 1.01 * (1 - mass)
            w = 1.0 if weights is None else float(weights[b, digits[0]])
            total_weight += w
            losses[b, digits[0]] = loss * w
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / total_weight


def gradients(loss, logits):
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    return gradient
