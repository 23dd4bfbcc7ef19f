"""The statistics of the suite, as pure functions of arrays: they know nothing of records, tables or plots.

One value per seed; arms are compared on the seeds they share. The rules (intervals, corrections, margins, the order in
which verdicts are tested) were fixed before the runs and are stated in the docs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

LEVEL = 0.05
MAX_EXACT = 20  # 2^20 sign patterns are counted in a moment; beyond, "exact" would be a promise nobody waits for
_ROUNDING = 1e-12  # differences that agree to this share of the values' size differ by rounding alone

Verdict = Literal["floor", "ceiling", "equivalent", "differs", "undecided", "reproduced", "opposite", "no clear effect"]


@dataclass(frozen=True)
class Summary:
    """Mean and spread over seeds. `sd` is the sample standard deviation (n − 1), None below two values."""

    mean: float | None
    sd: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """A paired comparison over n seeds: treatment − baseline.

    `low`, `high` are the paired-t 95 % interval and `p` its two-sided p; all three are None below two pairs.
    `sign_flip_p` is the exact two-sided p over all 2^n sign patterns, None without a pair.
    """

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    sign_flip_p: float | None
    n: int

    def signed(self, sign: int) -> Paired:
        """The same comparison seen from the other side for `sign` −1; unchanged for +1."""
        if sign == 1 or self.difference is None:
            return self
        low, high = (None, None) if self.low is None else (-self.high, -self.low)
        return Paired(-self.difference, low, high, self.p, self.sign_flip_p, self.n)


NOTHING = Paired(None, None, None, None, None, 0)  # compared on no seed at all


def summarise(values: ArrayLike) -> Summary:
    """Summarise values of shape (n,), one per seed; n may be 0."""
    values = _vector(values)
    if values.size == 0:
        return Summary(None, None, 0)
    sd = float(values.std(ddof=1)) if values.size > 1 else None
    return Summary(float(values.mean()), sd, int(values.size))


def common(treatment: Mapping[int, float], baseline: Mapping[int, float]) -> tuple[tuple[int, ...], NDArray, NDArray]:
    """Values by seed → the shared seeds (n, ascending) and both arms' values on them, (n,) each."""
    seeds = tuple(sorted(set(treatment) & set(baseline)))
    return seeds, _vector([treatment[s] for s in seeds]), _vector([baseline[s] for s in seeds])


def paired(treatment: ArrayLike, baseline: ArrayLike, level: float = LEVEL) -> Paired:
    """Compare two arms whose values (n,) stand in the same order of seeds.

    Where all differences are equal the t statistic is undefined (0/0, or a difference over no spread at all). The
    interval is then the single point, and the exact sign-flip p stands in for the t-test's: two seeds that happen to
    agree to the last question must not count as certainty.
    """
    differences, constant = _differences(treatment, baseline)
    n = differences.size
    if n == 0:
        return Paired(None, None, None, None, None, 0)
    mean = float(differences.mean())
    flip = sign_flip_p(differences)
    if n == 1:
        return Paired(mean, None, None, None, flip, 1)
    if constant:
        return Paired(mean, mean, mean, flip, flip, n)
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(1 - level)
    return Paired(mean, float(interval.low), float(interval.high), float(test.pvalue), flip, n)


def sign_flip_p(differences: ArrayLike) -> float:
    """Exact two-sided sign-flip p of differences (n,), 1 ≤ n ≤ 20.

    The share of the 2^n sign patterns whose |sum| is at least the observed one; its floor is 2 / 2^n.
    """
    differences = _vector(differences)
    if not 1 <= differences.size <= MAX_EXACT:
        raise ValueError(
            f"got {differences.size} differences, expected 1 to {MAX_EXACT}: 2^n sign patterns are counted"
        )
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    # Patterns that tie with the observed sum may differ from it by rounding.
    slack = _ROUNDING * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - slack))


def holm(p: ArrayLike) -> NDArray:
    """Holm's step-down correction of p-values (m,) → (m,), in the same order. NaN (not tested) stays, uncounted."""
    p = np.asarray(p, dtype=float)
    corrected = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = p[order] * (order.size - np.arange(order.size))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def equivalence_p(treatment: ArrayLike, baseline: ArrayLike, low: float, high: float) -> float | None:
    """The larger p of two one-sided paired t-tests of `low` < difference < `high`; values (n,) each.

    Either margin may be infinite: that side is then not tested. None below two pairs. Where all differences are equal,
    the one-sided sign-flip p 2^−n (inside the margin) or 1 stands in, as in `paired`.
    """
    if not low < high:
        raise ValueError(f"got margins {low} and {high}, expected low < high")
    differences, constant = _differences(treatment, baseline)
    if differences.size < 2:
        return None
    if constant:
        return float(0.5**differences.size) if low < differences.mean() < high else 1.0
    sides = []
    if np.isfinite(low):
        sides.append(stats.ttest_1samp(differences, low, alternative="greater").pvalue)
    if np.isfinite(high):
        sides.append(stats.ttest_1samp(differences, high, alternative="less").pvalue)
    return float(max(sides, default=0.0))


def detectable(sd: float, n: int, level: float = LEVEL, power: float = 0.8) -> float:
    """Return the smallest true mean difference that a two-sided paired t-test detects with probability `power`.

    Args:
        sd: standard deviation of the paired differences.
        n: pairs, at least 2.
        level: of the test. With Holm's correction over m claims, LEVEL / m guarantees `power` for any one of them.
    """
    _check_design(sd, n)
    critical = stats.t.isf(level / 2, n - 1)

    def shortfall(shift: float) -> float:  # the far tail's share is below 1e-3 of `level` at any useful power
        return stats.nct.sf(critical, n - 1, shift) - power

    # Power grows with the shift, from level / 2 at 0 to 1.
    return sd / np.sqrt(n) * float(optimize.brentq(shortfall, 0.0, 10 * critical + 50))


def detectable_margin(sd: float, n: int, level: float = LEVEL, power: float = 0.8) -> float:
    """Return the smallest margin at which two one-sided paired t-tests find equivalence with probability `power`.

    The true difference is taken to be zero; arguments as in `detectable`. By Monte Carlo over the exact distributions
    of mean and standard deviation, with a fixed seed: good to about 1 %.
    """
    _check_design(sd, n)
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(200_000) / np.sqrt(n)
    spread = np.sqrt(rng.chisquare(n - 1, 200_000) / (n - 1) / n)
    # Equivalence is found where |mean| + critical · spread lies below the margin.
    return sd * float(np.quantile(np.abs(mean) + stats.t.isf(level, n - 1) * spread, power))


def _check_design(sd: float, n: int) -> None:
    if not (sd >= 0 and n >= 2):
        raise ValueError(f"got a standard deviation of {sd} and {n} pairs, expected at least 0 and at least 2")


def not_above_zero(values: ArrayLike, level: float = LEVEL) -> bool:
    """Return whether the 95 % t interval of the mean of values (n,) reaches down to zero; so it does below two values.

    Equal values have no spread to judge by: then their sign decides.
    """
    values = _vector(values)
    if values.size < 2:
        return True
    if np.ptp(values) <= _ROUNDING * np.abs(values).max():
        return bool(values[0] <= 0)
    return bool(stats.ttest_1samp(values, 0.0).confidence_interval(1 - level).low <= 0)


def at_floor(arms: Sequence[float], trivial: Sequence[float], kind: str) -> bool:
    """No arm's mean beats the best trivial predictor: by 0.02 for a score (higher is better), by 2 % for an error.

    Other kinds of metric, and comparisons without a trivial predictor, have no floor.
    """
    if not arms or not trivial or kind not in ("score", "error"):
        return False
    if kind == "score":
        return max(arms) - max(trivial) < 0.02 - _ROUNDING
    return min(arms) > 0.98 * min(trivial) * (1 + _ROUNDING)


def at_ceiling(arms: Sequence[float], kind: str) -> bool:
    """Every arm's mean is above 0.98 in a score; never so for errors."""
    return kind == "score" and bool(arms) and min(arms) > 0.98


def verdict(
    comparison: Paired,
    *,
    corrected_p: float | None = None,
    equivalence: float | None = None,
    margin: tuple[float, float] | None = None,
    floor: bool = False,
    ceiling: bool = False,
) -> Verdict:
    """What the data say of one claim, tested in the order: floor, ceiling, then the claim's own rule.

    `comparison` is signed so that positive is what the paper claims. With a `margin` (low, high) the claim is one of no
    effect, judged by `equivalence`, the p of `equivalence_p` for that margin; without, it is one of a difference,
    judged by the interval and `corrected_p`.
    """
    if floor:
        return "floor"
    if ceiling:
        return "ceiling"
    known = comparison.low is not None and comparison.high is not None
    if margin is not None:
        if equivalence is not None and equivalence < LEVEL:
            return "equivalent"
        return "differs" if known and (comparison.low > margin[1] or comparison.high < margin[0]) else "undecided"
    if known and corrected_p is not None and corrected_p < LEVEL:
        if comparison.low > 0:
            return "reproduced"
        if comparison.high < 0:
            return "opposite"
    return "no clear effect"


def _vector(values: ArrayLike) -> NDArray:
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"got shape {values.shape}, values {values}; expected one finite value per seed, shape (n,)")
    return values


def _differences(treatment: ArrayLike, baseline: ArrayLike) -> tuple[NDArray, bool]:
    """Return the differences (n,), and whether they are all equal up to rounding (then exactly equal on return)."""
    treatment, baseline = _vector(treatment), _vector(baseline)
    if treatment.shape != baseline.shape:
        raise ValueError(f"got {treatment.size} and {baseline.size} values, expected pairs on the same seeds")
    differences = treatment - baseline
    if differences.size == 0:
        return differences, False
    scale = _ROUNDING * max(np.abs(treatment).max(), np.abs(baseline).max())
    constant = bool(np.ptp(differences) <= scale)
    if constant:
        mean = differences.mean()
        differences = np.full_like(differences, 0.0 if abs(mean) <= scale else mean)
    return differences, constant
