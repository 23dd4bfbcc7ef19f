"""The statistics against scipy, brute force and the properties that hold for any numbers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from experiments.analysis.statistics import (
    NOTHING,
    Paired,
    at_ceiling,
    at_floor,
    common,
    detectable,
    detectable_margin,
    equivalence_p,
    holm,
    not_above_zero,
    paired,
    sign_flip_p,
    summarise,
    verdict,
)

# Scores as they come: hundredths, so that ties and equal differences do occur.
pairs = st.integers(2, 8).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 100).map(lambda x: x / 100), min_size=n, max_size=n)] * 2)
)
probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=8)
OURS = [0.41, 0.47, 0.40, 0.52, 0.44]
THEIRS = [0.36, 0.45, 0.41, 0.46, 0.40]


def test_a_summary_is_the_mean_and_the_sample_deviation():
    summary = summarise(OURS)
    assert (summary.mean, summary.n) == (pytest.approx(np.mean(OURS)), 5)
    assert summary.sd == pytest.approx(np.std(OURS, ddof=1))
    assert summarise([0.3]).sd is None
    assert summarise([]).mean is None


def test_arms_are_paired_on_the_seeds_they_share():
    seeds, ours, theirs = common({2: 0.2, 0: 0.0, 5: 0.5}, {5: 1.5, 7: 1.7, 0: 1.0})
    assert seeds == (0, 5)
    assert ours.tolist() == [0.0, 0.5]
    assert theirs.tolist() == [1.0, 1.5]


def test_a_comparison_agrees_with_scipy():
    compared = paired(OURS, THEIRS)
    test = stats.ttest_rel(OURS, THEIRS)
    interval = test.confidence_interval(0.95)
    assert compared.p == pytest.approx(test.pvalue)
    assert (compared.low, compared.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert compared.difference == pytest.approx(0.032)


@given(pairs)
@example(([0.0, 0.0, 0.12, 0.56, 0.01, 0.05, 1.0], [0.0, 0.0, 0.82, 0.91, 0.0, 0.0, 0.0]))
def test_the_sign_flip_p_is_scipys_exact_permutation_test(both):
    ours, theirs = map(np.array, both)
    whole = [np.rint(100 * scores) for scores in (ours, theirs)]  # of hundredths, scipy would miss ties by rounding
    expected = stats.permutation_test(
        whole, lambda a, b: abs(np.sum(a - b)), permutation_type="samples", alternative="greater"
    )
    assert sign_flip_p(ours - theirs) == pytest.approx(expected.pvalue)


def test_the_floor_of_the_sign_flip_p():
    assert sign_flip_p([0.1, 0.2, 0.3, 0.4, 0.5]) == 0.0625
    assert sign_flip_p(np.arange(1, 9)) == 0.0078125
    assert sign_flip_p([0.1]) == 1.0
    for size in (0, 21):
        with pytest.raises(ValueError, match=f"got {size} differences"):
            sign_flip_p(np.ones(size))


@given(pairs)
def test_swapping_the_arms_turns_the_sign_and_nothing_else(both):
    forth, back = paired(*both), paired(*reversed(both))
    assert forth.difference == pytest.approx(-back.difference)
    assert (forth.low, forth.high) == (pytest.approx(-back.high), pytest.approx(-back.low))
    assert forth.p == pytest.approx(back.p)
    assert forth.sign_flip_p == back.sign_flip_p
    assert forth.signed(-1).low == pytest.approx(back.low)


@given(pairs)
def test_probabilities_lie_between_0_and_1_and_the_interval_around_the_difference(both):
    compared = paired(*both)
    assert 0 <= compared.p <= 1
    assert 2 * 0.5**compared.n <= compared.sign_flip_p <= 1
    assert compared.low <= compared.difference <= compared.high


def test_one_pair_has_a_difference_but_no_interval():
    compared = paired([0.5], [0.4])
    assert compared.difference == pytest.approx(0.1)
    assert (compared.low, compared.high, compared.p, compared.n) == (None, None, None, 1)
    assert paired([], []) == NOTHING


def test_equal_arms_differ_by_nothing():
    assert paired(OURS, OURS) == Paired(0.0, 0.0, 0.0, 1.0, 1.0, 5)


def test_equal_differences_are_not_taken_for_certainty():
    # 0.3 − 0.2 and 0.4 − 0.3 differ in the last bit: a t-test would divide by that.
    compared = paired([0.3, 0.4], [0.2, 0.3])
    assert compared.low == compared.high == compared.difference == pytest.approx(0.1)
    assert compared.p == 0.5
    assert paired([0.3, 0.4], [0.3, 0.4 + 1e-17]).difference == 0


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [[1.0], [2.0]], [math.inf, 0.0]])
def test_values_that_are_no_scores_are_refused(bad):
    with pytest.raises(ValueError, match="expected one finite value per seed"):
        paired(bad, [0.0, 0.0])


def test_arms_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="got 2 and 3 values"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    with_gap = holm([0.01, math.nan, 0.04])
    assert with_gap[[0, 2]].tolist() == pytest.approx([0.02, 0.04])
    assert math.isnan(with_gap[1])


@given(probabilities, st.floats(0.001, 0.5))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, level):
    rejected = set()
    for step, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[index] * (len(p) - step) > level:
            break
        rejected.add(index)
    assert set(np.flatnonzero(holm(p) <= level)) == rejected


@given(probabilities)
def test_holm_keeps_the_order_and_never_helps(p):
    corrected = holm(p)
    assert (corrected >= np.array(p) - 1e-15).all()
    assert (corrected <= 1).all()
    for i, j in itertools.combinations(range(len(p)), 2):
        assert p[i] == p[j] or (p[i] < p[j]) == (corrected[i] < corrected[j]) or corrected[i] == corrected[j]


def test_equivalence_is_two_one_sided_tests():
    low = stats.ttest_1samp(np.subtract(OURS, THEIRS), -0.08, alternative="greater").pvalue
    high = stats.ttest_1samp(np.subtract(OURS, THEIRS), 0.08, alternative="less").pvalue
    assert equivalence_p(OURS, THEIRS, -0.08, 0.08) == pytest.approx(max(low, high))
    assert equivalence_p(OURS, THEIRS, -0.08, math.inf) == pytest.approx(low)
    assert equivalence_p([0.1], [0.1], -0.02, 0.02) is None
    assert equivalence_p(OURS, OURS, -0.02, 0.02) == 0.5**5
    assert equivalence_p([0.3] * 5, [0.2] * 5, -0.02, 0.02) == 1.0
    with pytest.raises(ValueError, match="low < high"):
        equivalence_p(OURS, THEIRS, 0.02, -0.02)


@given(pairs, st.floats(0.001, 0.5))
def test_equivalence_is_an_interval_of_90_percent_inside_the_margin(both, margin):
    differences = np.subtract(*both)
    assume(np.ptp(differences) > 1e-9)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.90)
    inside = -margin < interval.low and interval.high < margin
    assume(min(abs(interval.low + margin), abs(interval.high - margin)) > 1e-9)
    assert (equivalence_p(*both, -margin, margin) < 0.05) == inside


def test_floor_and_ceiling():
    assert at_floor([0.10, 0.119], [0.02, 0.10], "score")
    assert not at_floor([0.10, 0.12], [0.02, 0.10], "score")
    assert at_floor([1.82, 2.0], [1.829, 2.1], "error")
    assert not at_floor([1.79, 2.0], [1.829, 2.1], "error")
    assert not at_floor([0.1], [], "score")
    assert not at_floor([0.1], [0.9], "fit")
    assert at_ceiling([0.99, 0.981], "score")
    assert not at_ceiling([0.99, 0.98], "score")
    assert not at_ceiling([0.99, 0.99], "error")


def compared(low, high):
    return Paired((low + high) / 2, low, high, 0.01, 0.0625, 5)


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("floor", {"comparison": compared(0.1, 0.2), "corrected_p": 0.01, "floor": True, "ceiling": True}),
        ("ceiling", {"comparison": compared(0.1, 0.2), "corrected_p": 0.01, "ceiling": True}),
        ("reproduced", {"comparison": compared(0.1, 0.2), "corrected_p": 0.049}),
        ("no clear effect", {"comparison": compared(0.1, 0.2), "corrected_p": 0.05}),
        ("no clear effect", {"comparison": compared(-0.1, 0.2), "corrected_p": 0.01}),
        ("opposite", {"comparison": compared(-0.2, -0.1), "corrected_p": 0.01}),
        ("no clear effect", {"comparison": paired([0.5], [0.1])}),
        ("equivalent", {"comparison": compared(-0.01, 0.01), "equivalence": 0.01, "margin": (-0.02, 0.02)}),
        # An interval that excludes zero but lies inside the margin is still equivalent.
        ("equivalent", {"comparison": compared(0.001, 0.01), "equivalence": 0.01, "margin": (-0.02, 0.02)}),
        ("differs", {"comparison": compared(0.03, 0.05), "equivalence": 0.9, "margin": (-0.02, 0.02)}),
        ("undecided", {"comparison": compared(0.01, 0.05), "equivalence": 0.6, "margin": (-0.02, 0.02)}),
        ("undecided", {"comparison": paired([0.5], [0.1]), "margin": (-0.02, 0.02)}),
        # One-sided: better by any amount is no harm.
        ("undecided", {"comparison": compared(0.03, 0.05), "equivalence": 0.9, "margin": (-0.02, math.inf)}),
        ("floor", {"comparison": NOTHING, "floor": True, "margin": (-0.02, 0.02)}),
    ],
)
def test_verdicts_in_their_order(expected, arguments):
    assert verdict(**arguments) == expected


@pytest.mark.parametrize(("n", "level"), [(5, 0.05), (8, 0.05), (8, 0.05 / 13), (3, 0.05)])
def test_the_detectable_effect_is_found_in_four_of_five_simulated_experiments(n, level):
    effect = detectable(0.03, n, level)
    differences = np.random.default_rng(1).normal(effect, 0.03, (20_000, n))
    found = (stats.ttest_1samp(differences, 0.0, axis=1).pvalue < level).mean()
    assert found == pytest.approx(0.8, abs=0.012)
    assert detectable(0.06, n, level) == pytest.approx(2 * effect)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_detectable_margin_is_met_in_four_of_five_simulated_experiments(n):
    margin = detectable_margin(0.03, n)
    differences = np.random.default_rng(1).normal(0.0, 0.03, (4_000, n))
    above = stats.ttest_1samp(differences, -margin, axis=1, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, margin, axis=1, alternative="less").pvalue
    assert (np.maximum(above, below) < 0.05).mean() == pytest.approx(0.8, abs=0.02)


def test_a_mean_is_above_zero_where_its_interval_is():
    assert not not_above_zero([0.10, 0.12, 0.14])
    assert not_above_zero([-0.1, 0.12, 0.14])
    assert not_above_zero([0.5])
    assert not not_above_zero([0.1, 0.1]) and not_above_zero([0.0, 0.0])
