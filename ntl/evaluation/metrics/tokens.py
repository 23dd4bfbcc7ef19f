"""Reference tokens under teacher forcing; these need sums that answering collects, see `TokenStats`."""

from __future__ import annotations

import numpy as np

from ntl.evaluation.metrics.base import Undefined, metric


@metric("Token accuracy", better="higher", kind="score")
def token_accuracy(correct: int, tokens: int) -> float:
    """Share of reference tokens predicted right; both counts exclude padding."""
    if tokens == 0:
        raise Undefined("there is no token to predict")
    return correct / tokens


@metric("NLL", better="lower", kind="error", format=".4g")
def nll(nll_sum: float, tokens: int) -> float:
    """Mean negative log-likelihood (natural logarithm) of a reference token; padding excluded."""
    if tokens == 0:
        raise Undefined("there is no token to predict")
    return nll_sum / tokens


@metric("Perplexity", better="lower", kind="error", format=".4g")
def perplexity(nll_sum: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood (natural logarithm) of a reference token; padding excluded from both."""
    if tokens == 0:
        raise Undefined("there is no token to predict")
    return float(np.exp(nll_sum / tokens))


@metric("Digit error", better="lower", kind="error", format=".4g")
def digit_error(digit_error_sum: float, digits: int) -> float:
    """Mean |Σ_j p_j v_j − v| over the reference's digit tokens of value v, p the softmax over the digit tokens alone.

    Nothing is generated: every digit is predicted after the right ones before it. Defined where all number tokens are
    single digits: not where some have several digits (`subword`), nor for xVal's one [NUM].
    """
    if digits == 0:
        raise Undefined("no reference token is a digit, or numbers are not written in digits")
    return digit_error_sum / digits
