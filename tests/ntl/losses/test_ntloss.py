"""The drop-ins against the package ntloss, value by value and gradient by gradient, with the same calls."""

import copy
from itertools import product

import ntloss
import pytest
import torch
import torch.nn.functional as F
from helpers import loss_reference as reference
from helpers.shared_data import shared

import ntl.losses
from ntl.losses import NTLoss, NTLossDotProduct, NumberLevelLoss, NumberTokenLoss

TEXTS = ["12 x 345", "7", "0.5 1.2.3", "12.", ".5 90", "no number", "3..4", "1.5", "007 00"]


class Tokenizer:
    """The little of a tokenizer that ntloss uses."""

    def __init__(self, words):
        self.vocabulary = {word: i for i, word in enumerate(words)}

    def __len__(self):
        return len(self.vocabulary)

    def get_vocab(self):
        return dict(self.vocabulary)

    def add_tokens(self, tokens):
        new = [token for token in tokens if token not in self.vocabulary]
        self.vocabulary |= {token: len(self.vocabulary) + i for i, token in enumerate(new)}
        return len(new)

    def convert_tokens_to_ids(self, token):
        return self.vocabulary.get(token, 0)


def digit_tokenizer():
    words = [f"word{i}" for i in range(reference.WIDTH)]
    for text, i in reference.ID_OF.items():
        words[i] = text
    return Tokenizer(words)


def word_tokenizer():
    numbers = ["10", "7", "-3", "3.5", "1e2", "0", "٣", "2018.", "1_000", "7.0"]
    others = ["inf", "nan", "▁7", "Ġ7", "²", "½", "0x1F", ".", "-", "IV", "word", "<pad>", "<unk>", "x"]
    return Tokenizer([token for pair in zip(others, [*numbers, *"abcd"], strict=True) for token in pair])


def random_batch(tokenizer, seed, dtype=torch.float32, digits_only=True):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 9, len(tokenizer), generator=generator, dtype=torch.float64)
    labels = torch.randint(len(tokenizer), (4, 9), generator=generator)
    if digits_only:  # mostly numbers
        digits = torch.tensor([reference.ID_OF[char] for char in "0123456789."])
        labels = digits[torch.randint(len(digits), (4, 9), generator=generator)]
    labels[torch.rand(4, 9, generator=generator) < 0.2] = -100
    return logits.to(dtype).requires_grad_(), labels


def assert_same(ours, theirs, logits, labels, tolerance=1e-5, **call):
    a, b = ours(logits, labels, **call), theirs(logits, labels, **call)
    torch.testing.assert_close(a, b, rtol=tolerance, atol=1e-7)
    for cotangent in (torch.ones_like(a), torch.rand_like(a)):
        gradient, expected = (reference.gradients((loss * cotangent).sum(), logits) for loss in (a, b))
        scale = float(expected.abs().max())
        assert scale > 0
        torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance * scale)


def huber(prediction, target, reduction="mean"):
    """torch's Huber loss refuses mixed types, and ntloss keeps its targets in float32."""
    return F.huber_loss(prediction, target.to(prediction), reduction=reduction)


def calls(labels):
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(3))
    weights[0] = 0
    for reduction, loss_weights in product(("mean", "sum", "none"), (None, weights)):
        yield {"reduction": reduction, "loss_weights": loss_weights}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reweigh", [True, False])
@pytest.mark.parametrize("squash_factor", [None, 1.5, 9, 20.0])
@pytest.mark.parametrize("digit_level", [True, False])
def test_ntloss(dtype, reweigh, squash_factor, digit_level):
    tokenizer = digit_tokenizer() if digit_level else word_tokenizer()
    options = {"digit_level": digit_level, "reweigh": reweigh, "squash_factor": squash_factor}
    ours, theirs = NTLoss(tokenizer, **options), ntloss.NTLoss(tokenizer, **options)
    logits, labels = random_batch(tokenizer, 1, dtype, digit_level)
    for call in calls(labels):
        assert_same(ours, theirs, logits, labels, **call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reweigh", [True, False])
@pytest.mark.parametrize("loss_function", [F.mse_loss, F.l1_loss, huber, F.smooth_l1_loss])
@pytest.mark.parametrize("digit_level", [True, False])
def test_dot_product(dtype, reweigh, loss_function, digit_level):
    tokenizer = digit_tokenizer() if digit_level else word_tokenizer()
    options = {"digit_level": digit_level, "reweigh": reweigh, "loss_function": loss_function}
    ours, theirs = NTLossDotProduct(tokenizer, **options), ntloss.NTLossDotProduct(tokenizer, **options)
    logits, labels = random_batch(tokenizer, 2, dtype, digit_level)
    for call in calls(labels):
        assert_same(ours, theirs, logits, labels, **call)
    for a, b in zip(ours.predict_numbers(logits), theirs.predict_numbers(logits), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("float_level", [True, False])
@pytest.mark.parametrize("reweigh", [True, False])
@pytest.mark.parametrize("texts", [TEXTS, ["12345678901234567890123", "1.5"]], ids=["short", "beyond twenty digits"])
def test_number_level(float_level, reweigh, texts):
    tokenizer = digit_tokenizer()
    options = {"float_level": float_level, "reweigh": reweigh}
    ours, theirs = NumberLevelLoss(tokenizer, **options), ntloss.NumberLevelLoss(tokenizer, **options)
    labels = torch.tensor([reference.spell(text, max(map(len, texts))) for text in texts])
    logits = torch.randn(*labels.shape, len(tokenizer), generator=torch.Generator().manual_seed(4)).requires_grad_()
    for call in calls(labels):
        assert_same(ours, theirs, logits, labels, **call)
    logits, labels = random_batch(tokenizer, 5)
    for call in calls(labels):
        assert_same(ours, theirs, logits, labels, **call)


@pytest.mark.parametrize("name", ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"])
def test_the_same_call_by_position_and_the_same_vocabulary(name):
    tokenizer = digit_tokenizer()
    ours, theirs = (getattr(module, name)(tokenizer) for module in (ntl.losses, ntloss))
    logits, labels = random_batch(tokenizer, 6)
    labels = labels.masked_fill(labels == -100, 5)
    weights = torch.rand(labels.shape)
    torch.testing.assert_close(ours(logits, labels, weights, "sum", 5), theirs(logits, labels, weights, "sum", 5))
    assert torch.equal(ours.is_number_token, theirs.is_number_token)
    torch.testing.assert_close(ours.number_values, theirs.number_values, equal_nan=True)


def test_what_counts_as_a_number_in_words():
    """ntloss's own rule: whatever `float()` takes, `٣` and `1_000` included, a space marker not."""
    tokenizer = word_tokenizer()
    ours, theirs = NTLoss(tokenizer, digit_level=False), ntloss.NTLoss(tokenizer, digit_level=False)
    assert torch.equal(ours.is_number_token, theirs.is_number_token)
    assert len(ours.numbers) == 10


def test_a_real_tokenizer_is_left_as_it_is():
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.T5Tokenizer.from_pretrained(shared("tokenizers/t5"))
    before = copy.deepcopy(tokenizer.get_vocab())
    width = 32128
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(2, 12, width, generator=generator, dtype=torch.float64).requires_grad_()
    for digit_level in (True, False):
        ours = NTLoss(tokenizer, vocab_size=width, digit_level=digit_level)
        assert tokenizer.get_vocab() == before
        ids = ours.numbers.ids
        labels = ids[torch.randint(len(ids), (2, 12), generator=generator)]
        theirs = ntloss.NTLoss(copy.deepcopy(tokenizer), vocab_size=width, digit_level=digit_level)
        assert torch.equal(ours.is_number_token, theirs.is_number_token)
        assert_same(ours, theirs, logits, labels)


def test_what_differs_on_purpose():
    words = Tokenizer(["a", "b", "1", "2"])
    with pytest.raises(ValueError, match="without the tokens 0 3 4"):
        NTLoss(words)
    assert len(words) == 4  # ntloss would have added eight tokens
    tokenizer = digit_tokenizer()
    logits, labels = random_batch(tokenizer, 8)
    NTLoss(tokenizer)(logits, torch.zeros_like(labels)).backward()  # no number: ntloss's zero has no gradient path


def test_one_class_serves_tokenizers_and_vocabularies():
    tokenizer, numbers = digit_tokenizer(), reference.vocabulary(vocab_size=reference.WIDTH)
    logits, labels = random_batch(tokenizer, 9)
    for loss in (NTLoss, NTLossDotProduct, NumberLevelLoss):
        assert loss(tokenizer)(logits, labels) == loss(numbers)(logits, labels)
    assert NTLoss(tokenizer, reweigh=False)(logits, labels) == NumberTokenLoss(numbers)(logits, labels)


LOSSES = [
    ("NTLoss", {}),
    ("NTLoss", {"digit_level": False}),
    ("NTLoss", {"digit_level": False, "squash_factor": 20.0}),
    ("NTLossDotProduct", {}),
    ("NTLossDotProduct", {"digit_level": False, "loss_function": F.l1_loss}),
    ("NumberLevelLoss", {"float_level": True, "max_number_length": 7}),
]


@pytest.mark.parametrize(
    ("name", "options"), LOSSES, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_every_public_attribute_has_the_same_value(name, options):
    tokenizer = word_tokenizer() if options.get("digit_level") is False else digit_tokenizer()
    ours, theirs = (getattr(module, name)(tokenizer, **options) for module in (ntl.losses, ntloss))
    public = [attribute for attribute in vars(theirs) if not attribute.startswith("_")]
    assert {"number_values_dense", "max_dist"} <= set(public)
    for attribute in public:
        mine, expected = getattr(ours, attribute), getattr(theirs, attribute)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(mine, expected, equal_nan=True, msg=attribute)
        else:
            assert mine == expected, attribute
    with pytest.raises(AttributeError):  # it would change nothing
        ours.max_dist = torch.tensor(3.0)
    assert isinstance(ours, ntl.losses.NTLossDotProduct) == isinstance(theirs, ntloss.NTLossDotProduct)


def raised(call, *arguments, **options):
    """The type of what a call raises."""
    with pytest.raises(Exception) as caught:
        call(*arguments, **options)
    return caught.type


@pytest.mark.parametrize("squash_factor", [-1, 0, 0.5, 1, 1.0])
def test_squash_factors_that_both_refuse(squash_factor):
    with pytest.raises(ValueError, match=r"squash_factor=.*can't be equal to or smaller than 1"):
        NTLoss(digit_tokenizer(), squash_factor=squash_factor)
    mine, theirs = (raised(m.NTLoss, digit_tokenizer(), squash_factor=squash_factor) for m in (ntl.losses, ntloss))
    assert theirs is AssertionError and issubclass(mine, theirs)


def wrong_calls(logits, labels):
    yield "wider logits", (F.pad(logits, (0, 3)), labels), {}
    yield "narrower logits", (logits[..., :-1], labels), {}
    yield "integer logits", (logits.long(), labels), {}
    yield "float labels", (logits, labels.float()), {}
    yield "other shape", (logits, labels[:, 1:]), {}
    yield "weights of another shape", (logits, labels), {"loss_weights": torch.ones(labels.shape)[:, 1:]}
    yield "negative weights", (logits, labels), {"loss_weights": -torch.ones(labels.shape)}
    yield "unknown reduction", (logits, labels), {"reduction": "median"}


@pytest.mark.parametrize("name", ["NTLoss", "NTLossDotProduct", "NumberLevelLoss"])
def test_wrong_calls_raise_the_same_type_of_error(name):
    tokenizer = digit_tokenizer()
    logits, labels = random_batch(tokenizer, 10)
    for what, arguments, options in wrong_calls(logits.detach(), labels):
        ours, theirs = (getattr(module, name)(tokenizer) for module in (ntl.losses, ntloss))
        mine, expected = raised(ours, *arguments, **options), raised(theirs, *arguments, **options)
        assert issubclass(mine, expected), (what, mine, expected)
    with pytest.raises(ValueError, match=r"`vocab_size` is 24.*27 columns: pass"):
        getattr(ntl.losses, name)(tokenizer)(F.pad(logits, (0, 3)), labels)
    getattr(ntl.losses, name)(tokenizer, vocab_size=27)(F.pad(logits, (0, 3)), labels)
