"""The limitations that the paper states, one test each, with what mends them where something does."""

import pytest
import torch
from helpers import loss_reference as reference

from ntl.losses.functional import number_token_loss


def digit_logits(probability_of):
    """Logits of one position whose probabilities of digits are given; nothing is left for other tokens."""
    logits = torch.full((1, 1, reference.WIDTH), -1e4, dtype=torch.float64)
    for digit, probability in probability_of.items():
        logits[0, 0, reference.ID_OF[str(digit)]] = torch.tensor(probability).log()
    return logits.requires_grad_()


@pytest.mark.parametrize("kind", ["mse", "mae", "huber"])
def test_lp_has_a_spurious_minimum_and_was_has_none(kind):
    """Half the mass on 0 and half on 8 has the expected value 4: to Lp that is a perfect 4, to WAS it is 4 off."""
    labels = torch.tensor([[reference.ID_OF["4"]]])
    numbers = reference.vocabulary()
    logits = digit_logits({0: 0.5, 8: 0.5})
    lp = number_token_loss(logits, labels, numbers, kind=kind)
    assert lp.item() == pytest.approx(0, abs=1e-12)
    assert reference.gradients(lp, logits).abs().max() < 1e-12  # a minimum indeed: nothing to follow
    was = number_token_loss(logits, labels, numbers)
    assert was.item() == pytest.approx(4)

    # descent on WAS, from this point with a trace of mass on every digit, ends at the label
    logits = digit_logits({digit: 0.46 if digit in (0, 8) else 0.01 for digit in range(10)}).detach()
    for _ in range(300):
        logits = logits.requires_grad_()
        gradient = reference.gradients(number_token_loss(logits, labels, numbers), logits)
        logits = (logits - 2 * gradient).detach()
    assert logits[0, 0, numbers.ids].softmax(-1)[numbers.lookup(labels)[0, 0]] > 0.99


def test_all_digits_weigh_alike_and_place_value_mends_it():
    """An error of one in the hundreds costs what an error of one in the units costs; with places it costs more."""
    labels = torch.tensor([reference.spell("555")])
    numbers = reference.vocabulary()

    def cost(guess, **options):
        logits = torch.nn.functional.one_hot(torch.tensor([reference.spell(guess)]), reference.WIDTH) * 100.0
        return float(number_token_loss(logits, labels, numbers, **options))

    assert cost("655") == pytest.approx(cost("556"))
    assert cost("655", place_value=10.0) == pytest.approx(100 * cost("556", place_value=10.0))
    # what a number weighs as a whole stays as it was
    assert cost("666", place_value=10.0) == pytest.approx(cost("666"))


def test_large_values_rule_the_loss_and_squash_mends_it():
    """With tokens like 2018 one far token outweighs all else; `squash` bounds what it costs beside the nearest."""
    numbers = reference.vocabulary(reference.VALUE_OF)
    labels = torch.tensor([[6]])  # the value 0

    def cost(token, **options):
        logits = torch.nn.functional.one_hot(torch.tensor([[token]]), reference.WIDTH) * 100.0
        return float(number_token_loss(logits, labels, numbers, **options))

    nearest, farthest = 8, 7  # the values 1.5 and 2018
    assert cost(farthest) / cost(nearest) == pytest.approx(2018 / 1.5)
    assert cost(farthest, squash=9.0) == pytest.approx(9)
    assert cost(nearest, squash=9.0) == pytest.approx(1)
    # the order of distances is kept
    order = sorted(set(reference.VALUE_OF) - {6}, key=reference.VALUE_OF.get)
    costs = [cost(token, squash=9.0) for token in order]
    assert costs == sorted(costs)
