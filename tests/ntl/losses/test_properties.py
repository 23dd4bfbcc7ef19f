"""What holds for any logits and labels, searched by hypothesis."""

import pytest
import torch
from helpers import loss_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.losses.functional import cross_entropy_with_ntl, gaussian_cross_entropy, number_level_loss, number_token_loss
from ntl.numbers import NumberVocabulary

thorough = settings(deadline=None, max_examples=200, derandomize=True)
searched = settings(thorough, max_examples=60)

seeds = st.integers(0, 2**31)
kinds = st.sampled_from(["was", "mse", "mae", "huber"])
options = st.one_of(
    st.fixed_dictionaries({"kind": kinds, "reweigh": st.booleans(), "place_value": st.floats(1, 10)}),
    st.fixed_dictionaries({"squash": st.floats(1, 50), "reweigh": st.booleans()}),
    st.fixed_dictionaries({"sigma": st.floats(0.05, 20), "reweigh": st.booleans()}),
)
vocabularies = st.sampled_from([reference.DIGIT_OF, reference.VALUE_OF])


def one_hot(ids, high=1e3):
    return torch.nn.functional.one_hot(torch.as_tensor(ids), reference.WIDTH).double() * high


@searched
@given(seeds, options, vocabularies)
def test_losses_are_not_negative(seed, options, value_of):
    logits, labels = reference.batch(seed, value_of=value_of, scale=5)
    loss = number_token_loss(logits, labels, reference.vocabulary(value_of), **options, reduction="none")
    # p and the Gaussian may agree to rounding
    assert (loss >= -1e-12).all()


@searched
@given(st.sampled_from(sorted(reference.VALUE_OF)), st.sampled_from(sorted(reference.VALUE_OF)), st.floats(1, 30))
def test_was_is_zero_exactly_if_all_mass_is_on_the_labels_value(predicted, label, squash):
    numbers = reference.vocabulary(reference.VALUE_OF)
    right = reference.VALUE_OF[predicted] == reference.VALUE_OF[label]
    for choice in ({}, {"squash": squash}, {"kind": "mse"}, {"kind": "mae"}, {"kind": "huber"}):
        loss = number_token_loss(one_hot([predicted]), torch.tensor([label]), numbers, **choice)
        assert (loss == 0) == right


@searched
@given(seeds)
def test_was_is_above_zero_unless_all_mass_is_on_the_label(seed):
    logits, labels = reference.batch(seed, scale=4)
    numbers = reference.vocabulary()
    loss = number_token_loss(logits, labels, numbers, reduction="none")
    index = numbers.lookup(labels)
    missing = 1 - logits[..., numbers.ids].softmax(-1).gather(-1, index.clamp_min(0)[..., None])[..., 0]
    # each wrong digit is one to nine away
    assert (loss >= missing.where(index >= 0, 0.0) - 1e-12).all()
    assert (loss <= 9 * missing.where(index >= 0, 0.0) + 1e-12).all()


@searched
@given(seeds, options, vocabularies, st.floats(-100, 100))
def test_a_shift_of_all_logits_changes_nothing(seed, options, value_of, shift):
    logits, labels = reference.batch(seed, value_of=value_of)
    numbers = reference.vocabulary(value_of)
    torch.testing.assert_close(
        cross_entropy_with_ntl(logits + shift, labels, numbers, **options),
        cross_entropy_with_ntl(logits, labels, numbers, **options),
    )


@searched
@given(seeds, options, vocabularies)
def test_the_order_of_the_vocabulary_does_not_matter(seed, options, value_of):
    logits, labels = reference.batch(seed, value_of=value_of)
    order = torch.randperm(reference.WIDTH, generator=torch.Generator().manual_seed(seed % 1000))
    renamed = {int(order[token]): value for token, value in value_of.items()}
    numbers = NumberVocabulary(
        ids=torch.tensor(sorted(renamed)),
        values=torch.tensor([float(renamed[token]) for token in sorted(renamed)], dtype=torch.float64),
        vocab_size=reference.WIDTH,
        dot_ids=(int(order[reference.DOT]),),
    )
    moved = torch.empty_like(logits).index_copy(-1, order, logits)
    moved_labels = torch.where(labels >= 0, order[labels.clamp_min(0)], labels)
    torch.testing.assert_close(
        cross_entropy_with_ntl(moved, moved_labels, numbers, **options),
        cross_entropy_with_ntl(logits, labels, reference.vocabulary(value_of), **options),
    )


@searched
@given(seeds, vocabularies, st.floats(0.01, 1000), st.floats(-1000, 1000), st.booleans())
def test_scale_and_shift_of_the_values(seed, value_of, scale, shift, reweigh):
    """WAS and MAE scale with the values, MSE with their square; with `squash` the scale is gone."""
    logits, labels = reference.batch(seed, value_of=value_of)
    numbers = reference.vocabulary(value_of)
    moved = reference.vocabulary({token: scale * value + shift for token, value in value_of.items()})
    for choice, factor in (({}, scale), ({"kind": "mae"}, scale), ({"kind": "mse"}, scale**2), ({"squash": 4.0}, 1.0)):
        torch.testing.assert_close(
            number_token_loss(logits, labels, moved, reweigh=reweigh, **choice),
            factor * number_token_loss(logits, labels, numbers, reweigh=reweigh, **choice),
            rtol=1e-6,
            atol=1e-6,
        )
    torch.testing.assert_close(
        number_token_loss(logits, labels, moved, sigma=0.7 * scale),
        scale * number_token_loss(logits, labels, numbers, sigma=0.7),
        rtol=1e-6,
        atol=1e-6,
    )


extremes = st.sampled_from([0.0, 1.0, -1.0, 1e4, -1e4, 6e4, -6e4])


@thorough
@given(
    st.lists(extremes, min_size=reference.WIDTH, max_size=reference.WIDTH),
    st.sampled_from([*reference.DIGIT_OF, 0, -100]),
    options,
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_extreme_logits_give_no_nan(row, label, options, dtype):
    logits = torch.tensor([[row]], dtype=dtype).requires_grad_()
    labels = torch.tensor([[label]])
    numbers = reference.vocabulary()
    for loss in (
        cross_entropy_with_ntl(logits, labels, numbers, **options),
        gaussian_cross_entropy(logits, labels, numbers, sigma=0.3),
        number_level_loss(logits, labels, numbers, reweigh=True),
    ):
        assert loss.isfinite()
        gradient = reference.gradients(loss, logits)
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


@pytest.mark.parametrize("huge", [1e30, -1e30])
def test_single_precision_at_the_edge_of_its_range(huge):
    logits = torch.full((1, 2, reference.WIDTH), -huge)
    logits[..., 4] = huge
    logits.requires_grad_()
    for choice in ({}, {"kind": "mse"}, {"sigma": 1.0}, {"reweigh": True}):
        loss = number_token_loss(logits, torch.tensor([[4, 7]]), reference.vocabulary(), **choice)
        assert loss.isfinite()
        assert reference.gradients(loss, logits).isfinite().all()


@searched
@given(seeds, st.sampled_from([torch.float16, torch.bfloat16]), options)
def test_half_precision_loses_only_what_the_input_lost(seed, dtype, options):
    logits, labels = reference.batch(seed, dtype=dtype)
    numbers = reference.vocabulary()
    half = number_token_loss(logits, labels, numbers, **options)
    exact = number_token_loss(logits.detach().double(), labels, numbers, **options)
    torch.testing.assert_close(half.double(), exact, rtol=1e-5, atol=1e-6)


@searched
@given(seeds)
def test_was_bounds_the_error_of_the_expected_value(seed):
    """|E[v] − y| ≤ W1: the absolute kind of Lp is a lower bound of WAS (Jensen)."""
    logits, labels = reference.batch(seed)
    numbers = reference.vocabulary()
    was = number_token_loss(logits, labels, numbers, reduction="none")
    mae = number_token_loss(logits, labels, numbers, kind="mae", reduction="none")
    assert (mae <= was + 1e-12).all()
