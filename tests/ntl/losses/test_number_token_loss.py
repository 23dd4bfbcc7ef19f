"""The number token loss against its definition written out with loops, in float64, values and gradients."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from helpers import loss_reference as reference
from helpers.shared_data import shared
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance

from ntl.encodings import PretrainedTokenizer, build
from ntl.losses import NumberTokenLoss
from ntl.losses.functional import number_token_loss
from ntl.numbers import NumberVocabulary

KINDS = ("was", "mse", "mae", "huber")
VOCABULARIES = {"digits": reference.DIGIT_OF, "uneven": reference.VALUE_OF}


def random_weights(labels, seed=5):
    return torch.rand(labels.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "reweigh", "vocabulary"), product(KINDS, (False, True), VOCABULARIES))
def test_value_and_gradient_are_the_definitions(kind, reweigh, vocabulary):
    value_of = VOCABULARIES[vocabulary]
    logits, labels = reference.batch(seed=1, value_of=value_of)
    ours = number_token_loss(logits, labels, reference.vocabulary(value_of), kind=kind, reweigh=reweigh)
    theirs = reference.number_token_loss(logits, labels, value_of, kind=kind, reweigh=reweigh)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(reference.gradients(ours, logits), reference.gradients(theirs, logits))


@pytest.mark.parametrize("options", [{"squash": 1.0}, {"squash": 2.5, "reweigh": True}, {"sigma": 0.5}, {"sigma": 2.0}])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_options_of_was(options, vocabulary):
    value_of = VOCABULARIES[vocabulary]
    logits, labels = reference.batch(seed=2, value_of=value_of)
    ours = number_token_loss(logits, labels, reference.vocabulary(value_of), **options)
    theirs = reference.number_token_loss(logits, labels, value_of, **options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(reference.gradients(ours, logits), reference.gradients(theirs, logits))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("place_value", [1.0, 3.0])
@pytest.mark.parametrize("kind", ["was", "huber"])
def test_reductions_weights_and_places(reduction, weighted, place_value, kind):
    logits, labels = reference.batch(seed=3, length=12)
    weights = random_weights(labels) if weighted else None
    options = {"kind": kind, "place_value": place_value, "reduction": reduction}
    ours = number_token_loss(logits, labels, reference.vocabulary(), loss_weights=weights, **options)
    theirs = reference.number_token_loss(logits, labels, weights=weights, **options)
    torch.testing.assert_close(ours, theirs)
    cotangent = random_weights(ours, seed=6)
    torch.testing.assert_close(
        reference.gradients((ours * cotangent).sum(), logits), reference.gradients((theirs * cotangent).sum(), logits)
    )


def test_places_within_numbers():
    """Weights fall by the base from digit to digit, over the decimal point too, and average to one in each number."""
    labels = torch.tensor([reference.spell("123 45.6 7"), reference.spell("1.2.3 9 98")])
    logits = torch.zeros(2, 10, reference.WIDTH, dtype=torch.float64)
    plain = number_token_loss(logits, labels, reference.vocabulary(), reduction="none")
    weighted = number_token_loss(logits, labels, reference.vocabulary(), reduction="none", place_value=2.0)
    number = plain > 0
    weights = (weighted / plain).masked_fill(~number, 0.0)
    expected = [
        [12 / 7, 6 / 7, 3 / 7, 0, 12 / 7, 6 / 7, 0, 3 / 7, 0, 1],
        [4 / 3, 0, 2 / 3, 0, 1, 0, 1, 0, 4 / 3, 2 / 3],
    ]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_places_of_a_long_number_do_not_overflow():
    labels = torch.tensor([reference.spell("7" * 60)])
    logits = torch.randn(1, 60, reference.WIDTH)
    loss = number_token_loss(logits, labels, reference.vocabulary(), place_value=10.0, reduction="none")
    plain = number_token_loss(logits, labels, reference.vocabulary(), reduction="none")
    assert loss.isfinite().all()
    assert loss[0, 0].item() == pytest.approx(54 * plain[0, 0].item(), rel=1e-5)  # nine tenths of sixty


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("sigma", [None, 0.7])
def test_was_is_scipys_wasserstein_distance(vocabulary, sigma):
    value_of = VOCABULARIES[vocabulary]
    numbers = reference.vocabulary(value_of)
    logits, labels = reference.batch(seed=4, value_of=value_of)
    ours = number_token_loss(logits, labels, numbers, sigma=sigma, reduction="none").detach()
    values = numbers.values.numpy()
    checked = 0
    for b, t in product(range(labels.shape[0]), range(labels.shape[1])):
        if int(labels[b, t]) not in value_of:
            assert ours[b, t] == 0
            continue
        y = value_of[int(labels[b, t])]
        p = logits[b, t, numbers.ids].softmax(-1).detach().numpy()
        if sigma is None:
            expected = wasserstein_distance(values, [y], p)
        else:
            expected = wasserstein_distance(values, values, p, np.exp(-((values - y) ** 2) / (2 * sigma**2)))
        assert ours[b, t].item() == pytest.approx(expected, rel=1e-9)
        checked += 1
    assert checked > 10


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "was"},
        {"kind": "was", "reweigh": True, "squash": 3.0},
        {"kind": "was", "sigma": 1.0, "reweigh": True},
        {"kind": "mse", "reweigh": True},
        {"kind": "mae"},
        {"kind": "huber", "place_value": 2.0},
    ],
    ids=str,
)
def test_gradcheck(options):
    logits, labels = reference.batch(seed=7, rows=2, length=5)
    loss = NumberTokenLoss(reference.vocabulary(), **options)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), logits)


@pytest.mark.parametrize("ignore_index", [-100, -1, 6])
def test_ignored_labels_count_for_nothing(ignore_index):
    """Also where the ignored id is itself a number token (6 is the digit 0 here)."""
    logits, labels = reference.batch(seed=8)
    labels = torch.where(labels == 6, 0, labels)
    renamed = labels.masked_fill(labels == -100, ignore_index)
    ours = number_token_loss(logits, renamed, reference.vocabulary(), ignore_index=ignore_index)
    assert ours == number_token_loss(logits, labels, reference.vocabulary())


def test_a_callable_is_a_distance():
    logits, labels = reference.batch(seed=9)
    numbers = reference.vocabulary()
    cubed = number_token_loss(logits, labels, numbers, kind=lambda a, b: (a - b).abs() ** 2, reweigh=True)
    torch.testing.assert_close(cubed, number_token_loss(logits, labels, numbers, kind="mse", reweigh=True))


def test_leading_shapes_and_contiguity_do_not_matter():
    logits, labels = reference.batch(seed=10)
    numbers = reference.vocabulary()
    loss = number_token_loss(logits, labels, numbers)
    torch.testing.assert_close(number_token_loss(logits.flatten(0, 1), labels.flatten(), numbers), loss)
    strided = logits.transpose(0, 2).contiguous().transpose(0, 2)
    assert not strided.is_contiguous()
    torch.testing.assert_close(number_token_loss(strided, labels, numbers), loss)


@pytest.mark.parametrize("width", [21, 22, 64])
def test_columns_beyond_the_tokenizer_have_no_part(width):
    """Padded output layers: more columns than tokens change nothing, and one number less than vocab_size is no harm."""
    logits, labels = reference.batch(seed=11)
    numbers = reference.vocabulary()
    wide = torch.nn.functional.pad(logits, (0, width - reference.WIDTH), value=50.0)
    assert number_token_loss(wide, labels, numbers) == number_token_loss(logits, labels, numbers)


# T5's kind of vocabulary: marked twins, several digits in a token, interior dots.
SUBWORDS = [*"0179", "12", "345", "3.14", "▁7", "▁2024", "▁0.5", "▁1.5", ".", "x"]


class Spelt:
    """A tokenizer as `NumberVocabulary` needs it."""

    def __init__(self, tokens):
        self.get_vocab = {token: index for index, token in enumerate(tokens)}.copy


def place_weights_slowly(tokens, base):
    """Write the tokens out as text, find its numbers, and weigh each number's tokens by the place of their last digit.

    A token counts to the number that holds its last digit. Space markers are written as spaces, and tokens that are
    neither a number nor a dot (T5's `▁3.` among them) as `x`.
    """
    text, ends = "", []
    for token in tokens:
        is_number = re.fullmatch(r"▁?[0-9]+(\.[0-9]+)?", token)
        text += token.replace("▁", " ") if is_number or token == "." else "x"
        ends.append(len(text) - 1 if is_number else None)
    weights = [0.0] * len(tokens)
    for number in re.finditer(r"[0-9]+(\.[0-9]+)?", text):
        members = [t for t, end in enumerate(ends) if end is not None and number.start() <= end < number.end()]
        units = number.start() + len(number.group().partition(".")[0]) - 1  # a digit k after the units is after the dot
        shares = [base ** (units - ends[t] + (ends[t] > units)) for t in members]
        for t, share in zip(members, shares, strict=True):
            weights[t] = share * len(shares) / sum(shares)
    return weights


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(["7", "0", ".", "▁0.5"]) | st.sampled_from(SUBWORDS), min_size=1, max_size=12),
    st.floats(1.01, 10),
)
@example(["7", "▁0.5"], 2.0)  # two numbers, although the place falls from 0 to −1
@example(["12", ".", "▁1.5", "0"], 3.0)
@example(["345", "12", ".", "7"], 10.0)
def test_place_weights_of_subwords_are_those_of_the_written_numbers(tokens, base):
    # Digits with two points, such as `1.2.3`, are no numeral: which tokens belong together is nobody's to say.
    assume(not re.search(r"[0-9]\.[0-9]+\.[0-9]", "".join(tokens)))
    numbers = NumberVocabulary.from_tokenizer(Spelt(SUBWORDS), digits_only=False)
    labels = torch.tensor([[SUBWORDS.index(token) for token in tokens]])
    logits = torch.randn(*labels.shape, len(SUBWORDS), generator=torch.Generator().manual_seed(0)).double()
    plain = number_token_loss(logits, labels, numbers, reduction="none")[0].tolist()
    weighted = number_token_loss(logits, labels, numbers, reduction="none", place_value=base)[0].tolist()
    expected = place_weights_slowly(tokens, base)
    assert [loss > 0 for loss in plain] == [weight > 0 for weight in expected]
    assert weighted == pytest.approx([loss * weight for loss, weight in zip(plain, expected, strict=True)])


def test_place_weights_of_t5s_own_tokens():
    t5 = build("subword", PretrainedTokenizer(str(shared("tokenizers/t5"))))
    for text in ("1234.5 7", "7 1.5 2024", "In 2018 it was 3.75, not 12345678.25", "0 0.5 0.000"):
        ids = t5.encode(text)["input_ids"]
        tokens = t5.tokenizer.convert_ids_to_tokens(ids)
        logits = torch.zeros(1, len(ids), len(t5.tokenizer), dtype=torch.float64)
        labels = torch.tensor([ids])
        plain = number_token_loss(logits, labels, t5.numbers, reduction="none")[0].tolist()
        weighted = number_token_loss(logits, labels, t5.numbers, reduction="none", place_value=2.0)[0].tolist()
        expected = [loss * w for loss, w in zip(plain, place_weights_slowly(tokens, 2.0), strict=True)]
        assert weighted == pytest.approx(expected), tokens
