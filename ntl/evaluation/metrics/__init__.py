"""How well generated text answers: every metric compares text with text over a whole split.

Nothing is averaged over batches. A question is scored from two strings, what the model wrote and the reference, so that
every method passes through the same path; only those of `tokens` need sums that evaluation collects.

References and answers are read by one grammar (`ntl.number_grammar`, `docs/numbers.md`). The number of a text is the
last one in it and stays a `Decimal`: answers of thirty digits are compared digit by digit, and differences, quotients
and logarithms are taken before anything becomes a float. `accuracy_paper_parser` alone reads numbers as the paper's
evaluation does.

Two conventions for answers without a number stand side by side. Plain names leave such answers out, as the paper does:
a model can gain by staying silent. The names ending in `_filled` count them as the trivial prediction, the median of
the training answers: silence then earns what a constant earns.

From `mae` to `spearman_filled` p is clipped to ±1e10, as in the paper, and y is not. Where y itself lies beyond 1e10
the limit is ten times |y| instead: the paper's clip would call a right answer wrong there.

A metric without a value, such as the correlation with a constant, is None with a note that says why, never 0 or NaN.
One that does not apply (BLEU of numbers, `cut` where nobody counted) is absent.

A metric is one function with the decorator `metric`, in any module of this package; modules are found by themselves:

    @metric("Within 1 %", better="higher", kind="score")
    def within_one_percent(predictions: np.ndarray, labels: np.ndarray) -> float:
        return np.mean(abs(predictions - labels) * 100 <= abs(labels))

Its parameters name what it is computed from (`base.INPUTS`). `python -m experiments rescore` adds a new metric to runs
that are recorded already.
"""

import pkgutil
from importlib import import_module

from ntl.evaluation.metrics.base import INPUTS, METRICS, Metric, Undefined, metric
from ntl.evaluation.metrics.digits import first_wrong_digit
from ntl.evaluation.metrics.scoring import Scores, TokenStats, score

__all__ = [
    "INPUTS",
    "METRICS",
    "Metric",
    "Scores",
    "TokenStats",
    "Undefined",
    "first_wrong_digit",
    "metric",
    "score",
]

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
