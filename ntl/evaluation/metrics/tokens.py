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


@metric("Perplexity", better="lower", kind="error", format=".4g")
def perplexity(nll_sum: float, tokens: int) -> float:
    """exp of the mean negative log-likelihood (natural logarithm) of a reference token; padding excluded from both."""
    if tokens == 0:
        raise Undefined("there is no token to predict")
    return float(np.exp(nll_sum / tokens))
