"""The fused implementations against the plain one, which the other tests hold against the definitions."""

import copy

import pytest
import torch
from helpers import loss_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.losses import Counts, CrossEntropy, CrossEntropyWithNTL
from ntl.losses import functional as losses
from ntl.losses import fused as implementation
from ntl.losses.functional import cross_entropy, cross_entropy_with_ntl, linear_cross_entropy_with_ntl

VARIANTS = [
    {},
    {"weight": 0.0},
    {"kind": "mse", "weight": 2.0},
    {"kind": "mae", "reweigh": True},
    {"kind": "huber", "place_value": 3.0},
    {"reweigh": True, "label_smoothing": 0.2},
    {"squash": 2.0, "place_value": 2.0, "reweigh": True},
    {"sigma": 1.0},
    {"sigma": 0.5, "weight": 0.0},
    {"sigma": 2.0, "label_smoothing": 0.1, "reweigh": True},
]
EXACT = {"rtol": 1e-11, "atol": 1e-13}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """Of two and three rows: a number, and the rows without a label, lie across them."""
    monkeypatch.setattr(implementation, "BLOCK", 2 * reference.WIDTH)
    monkeypatch.setattr(implementation, "LINEAR_ROWS", 3)


def head(logits, bias=True, seed=0, size=5):
    """Hidden states, a head's weight and bias whose logits have the given shape."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = logits.shape[:-1], logits.shape[-1]
    options = {"generator": generator, "dtype": torch.float64}
    made = [torch.randn(*rows, size, **options), torch.randn(columns, size, **options) * 2]
    made += [torch.randn(columns, **options)] if bias else []
    return [tensor.to(logits.dtype).requires_grad_() for tensor in made]


def compare(ours, theirs, inputs, **tolerance):
    """Compare (total, parts) of two implementations, and the gradients by the inputs."""
    (total, parts), (expected, expected_parts) = ours, theirs
    torch.testing.assert_close(total, expected, **tolerance)
    assert parts.keys() == expected_parts.keys()
    for name, part in parts.items():
        torch.testing.assert_close(part, expected_parts[name], **tolerance)
        assert not part.requires_grad
    for one, other in zip(torch.autograd.grad(total, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def both(logits, labels, numbers, **options):
    return [
        cross_entropy_with_ntl(logits, labels, numbers, **options, return_parts=True, implementation=name)
        for name in ("fused", "plain")
    ]


def both_linear(inputs, labels, numbers, **options):
    hidden, lm_head_weight, *bias = inputs
    logits = torch.nn.functional.linear(hidden, lm_head_weight, *bias)
    bias = bias[0] if bias else None
    return (
        linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels, numbers, bias=bias, **options, return_parts=True),
        cross_entropy_with_ntl(logits, labels, numbers, **options, return_parts=True, implementation="plain"),
    )


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("value_of", [reference.DIGIT_OF, reference.VALUE_OF], ids=["digits", "uneven"])
@pytest.mark.parametrize("block", [1, 2 * reference.WIDTH, 2**22], ids=["rows", "blocks", "one block"])
def test_agrees_with_the_plain_one(options, value_of, block, monkeypatch):
    monkeypatch.setattr(implementation, "BLOCK", block)
    logits, labels = reference.batch(seed=1, value_of=value_of)
    numbers = reference.vocabulary(value_of)
    compare(*both(logits, labels, numbers, **options), [logits], **EXACT)
    inputs = head(logits)
    compare(*both_linear(inputs, labels, numbers, **options), inputs, **EXACT)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.one_of(
        st.fixed_dictionaries({"kind": st.sampled_from(["was", "mse", "mae", "huber"])}),
        st.fixed_dictionaries({"squash": st.floats(1, 50)}),
        st.fixed_dictionaries({"sigma": st.floats(0.2, 20)}),
    ),
    st.fixed_dictionaries(
        {
            "weight": st.sampled_from([0.0, 0.3, 3.0]),
            "reweigh": st.booleans(),
            "place_value": st.sampled_from([1.0, 2.5]),
            "label_smoothing": st.sampled_from([0.0, 0.1]),
            "ignore_index": st.sampled_from([-100, 0, 6]),
            "counts": st.sampled_from([None, Counts(50, 30), Counts(torch.tensor(7), torch.tensor(0))]),
        }
    ),
    st.sampled_from([reference.DIGIT_OF, reference.VALUE_OF]),
    st.tuples(st.integers(1, 4), st.integers(1, 7)),
    st.floats(0, 1),
    st.booleans(),
    st.floats(0.1, 8),
)
def test_agrees_whatever_the_options(seed, choice, options, value_of, shape, ignored, weighted, scale):
    rows, length = shape
    logits, labels = reference.batch(seed, rows, length, value_of, scale)
    generator = torch.Generator().manual_seed(seed)
    labels = labels.masked_fill(torch.rand(shape, generator=generator) < ignored, options["ignore_index"])
    labels = labels.masked_fill(labels == -100, options["ignore_index"])
    weights = torch.rand(shape, generator=generator) if weighted else None
    numbers = reference.vocabulary(value_of)
    options = choice | options | {"loss_weights": weights}
    compare(*both(logits, labels, numbers, **options), [logits], rtol=1e-9, atol=1e-10)
    inputs = head(logits, bias=seed % 2 == 0, seed=seed)
    compare(*both_linear(inputs, labels, numbers, **options), inputs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_gradcheck(options):
    logits, labels = reference.batch(seed=2, rows=2, length=4)
    numbers = reference.vocabulary()
    assert torch.autograd.gradcheck(
        lambda x: cross_entropy_with_ntl(x, labels, numbers, **options, implementation="fused"), logits, fast_mode=True
    )
    hidden, lm_head_weight, bias = head(logits)
    assert torch.autograd.gradcheck(
        lambda h, m, b: linear_cross_entropy_with_ntl(h, m, labels, numbers, bias=b, scale=0.5, **options),
        (hidden, lm_head_weight, bias),
        fast_mode=True,
    )


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("sigma", [None, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_alone(label_smoothing, sigma, reduction):
    logits, labels = reference.batch(seed=3)
    options = {"sigma": sigma, "label_smoothing": label_smoothing, "reduction": reduction, "return_parts": True}
    numbers = reference.vocabulary()
    ours, theirs = (
        cross_entropy(logits, labels, numbers, **options, implementation=name) for name in ("fused", "plain")
    )
    compare(ours, theirs, [logits], **EXACT)


@pytest.mark.parametrize("sigma", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_weight_zero_is_cross_entropy_bit_by_bit(sigma, dtype):
    logits, labels = reference.batch(seed=4, dtype=dtype)
    numbers = reference.vocabulary()
    plain, zero = (
        objective.with_implementation("fused")
        for objective in (CrossEntropy(numbers, sigma=sigma), CrossEntropyWithNTL(numbers, weight=0.0, sigma=sigma))
    )
    hidden, lm_head_weight, bias = head(logits)
    for one, other, inputs in (
        (plain.loss(logits, labels), zero.loss(logits, labels), [logits]),
        (
            plain.linear_loss(hidden, lm_head_weight, labels, bias=bias),
            zero.linear_loss(hidden, lm_head_weight, labels, bias=bias),
            [hidden, lm_head_weight, bias],
        ),
    ):
        assert torch.equal(one.total, other.total)
        assert torch.equal(one.parts["ce"], other.parts["ce"])
        assert other.parts["ntl"] > 0
        gradients = (torch.autograd.grad(result.total, inputs) for result in (one, other))
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(options, dtype):
    """Computed in float32; gradients are rounded to the inputs' type, in float16 before and after they are scaled."""
    logits, labels = reference.batch(seed=5, dtype=dtype)
    numbers = reference.vocabulary()
    tolerance = {torch.float32: 5e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype] * 1.05
    total, parts = cross_entropy_with_ntl(logits, labels, numbers, **options, return_parts=True, implementation="fused")
    assert {total.dtype, *(part.dtype for part in parts.values())} == {torch.float32}
    exact = logits.detach().double().requires_grad_()
    expected = cross_entropy_with_ntl(exact, labels, numbers, **options, implementation="plain")
    torch.testing.assert_close(total.double(), expected, rtol=2e-6, atol=1e-6)
    gradient = reference.gradients(total, logits)
    assert gradient.dtype == dtype
    torch.testing.assert_close(
        gradient.double(), reference.gradients(expected, exact), rtol=tolerance, atol=tolerance / 100
    )

    inputs = head(logits)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    total = linear_cross_entropy_with_ntl(*inputs[:2], labels, numbers, bias=inputs[2], **options)
    expected = linear_cross_entropy_with_ntl(*exact[:2], labels, numbers, bias=exact[2], **options)
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(total, inputs), torch.autograd.grad(expected, exact), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance / 100)


def test_inputs_are_left_as_they_are():
    logits, labels = reference.batch(seed=6)
    inputs = head(logits)
    before = copy.deepcopy([x.detach() for x in (logits, *inputs, labels)])
    numbers = reference.vocabulary()
    cross_entropy_with_ntl(logits, labels, numbers, reweigh=True, implementation="fused").backward()
    linear_cross_entropy_with_ntl(*inputs[:2], labels, numbers, bias=inputs[2]).backward()
    assert all(torch.equal(a, b) for a, b in zip((logits, *inputs, labels), before, strict=True))


def each(logits, labels):
    """The fused loss, and the linear one, with the inputs of each."""
    numbers = reference.vocabulary()
    hidden, lm_head_weight, bias = head(logits)
    yield cross_entropy_with_ntl(logits, labels, numbers, implementation="fused"), [logits]
    yield (
        linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels, numbers, bias=bias),
        [hidden, lm_head_weight, bias],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_one_graph_used_twice_and_scaled(dtype):
    for loss, inputs in each(*reference.batch(seed=7, dtype=dtype)):
        first = torch.autograd.grad(loss, inputs, retain_graph=True)
        kept = [x.clone() for x in first]
        for gradient in first:
            gradient.zero_()  # a caller may do as it likes with what it got
        (3 * loss).backward(retain_graph=True)
        (-loss).backward(retain_graph=True)
        loss.backward()
        for x, once in zip(inputs, kept, strict=True):
            torch.testing.assert_close(
                x.grad, 3 * once, **({} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 1e-4})
            )


def test_a_second_pass_without_retaining_is_an_error():
    for loss, _ in each(*reference.batch(seed=8)):
        loss.backward()
        with pytest.raises(RuntimeError, match="second"):
            loss.backward()


def test_a_second_derivative_is_an_error():
    for loss, inputs in each(*reference.batch(seed=9)):
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in gradients)
        with pytest.raises(RuntimeError, match=r"second derivative .* implementation='plain'"):
            (loss + penalty).backward()


def test_part_of_a_larger_graph():
    """The loss may be one term of many, and the logits may have other uses."""
    logits, labels = reference.batch(seed=10)
    numbers = reference.vocabulary()
    found = []
    for name in ("fused", "plain"):
        x = logits.detach().clone().requires_grad_()
        y = x * 2
        loss = cross_entropy_with_ntl(y, labels, numbers, implementation=name)
        (loss.square() * 3 + y.logsumexp(-1).mean()).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found, **EXACT)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradient(mode):
    logits, labels = reference.batch(seed=11)
    numbers = reference.vocabulary()
    hidden, lm_head_weight, bias = head(logits)
    with mode():
        ours, theirs = both(logits, labels, numbers, reweigh=True)
        assert not ours[0].requires_grad
        torch.testing.assert_close(ours, theirs, **EXACT)
        ours, theirs = both_linear((hidden, lm_head_weight, bias), labels, numbers)
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("frozen", range(3))
def test_what_needs_no_gradient_gets_none(frozen):
    logits, labels = reference.batch(seed=12)
    inputs = head(logits)
    inputs[frozen].requires_grad_(False)
    rest = [x for x in inputs if x.requires_grad]
    compare(*both_linear(inputs, labels, reference.vocabulary()), rest, **EXACT)


@pytest.mark.parametrize("counts", [None, Counts(0, 0), Counts(torch.tensor(9), torch.tensor(4))], ids=str)
@pytest.mark.parametrize("fill", [3, -100], ids=["no number", "no label"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_nothing_to_average(counts, fill, options):
    logits, labels = reference.batch(seed=13)
    numbers = reference.vocabulary()
    labels = torch.full_like(labels, fill)
    compare(*both(logits, labels, numbers, **options, counts=counts), [logits], **EXACT)
    inputs = head(logits)
    ours, theirs = both_linear(inputs, labels, numbers, **options, counts=counts)
    compare(ours, theirs, inputs, **EXACT)
    assert ours[1]["ntl"] == 0


def test_an_empty_batch():
    logits = torch.zeros(0, 5, reference.WIDTH, requires_grad=True)
    labels = torch.zeros(0, 5, dtype=torch.long)
    for loss, inputs in each(logits, labels):
        assert loss == 0
        assert all((g == 0).all() for g in torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_improbable_labels_and_excluded_columns(dtype):
    """A label's probability may underflow, and a model may exclude columns with −∞; the loss stays exact."""
    logits, labels = reference.batch(seed=14, dtype=dtype, scale=1000.0)
    logits = logits.detach()
    labels[:, 0] = 3
    logits[:, 1, 5] = -torch.inf
    labels[:, 1] = 6
    logits.requires_grad_()
    numbers = reference.vocabulary()
    for options in ({}, {"reweigh": True}, {"sigma": 1.0, "label_smoothing": 0.0}):
        ours, theirs = both(logits, labels, numbers, **options)
        assert ours[0].isfinite()
        compare(ours, theirs, [logits], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_micro_batches_of_unequal_counts_add_up(options):
    logits, labels = reference.batch(seed=15, rows=4, length=8)
    labels[0, 1:] = -100
    objective = CrossEntropyWithNTL(reference.vocabulary(), **options).with_implementation("fused")
    counts = objective.count(labels)
    hidden, lm_head_weight, bias = head(logits)
    whole, linear = objective.loss(logits, labels), objective.linear_loss(hidden, lm_head_weight, labels, bias=bias)
    halves = [slice(0, 2), slice(2, 4)]
    total = sum(objective.loss(logits[half], labels[half], counts).total for half in halves)
    torch.testing.assert_close(total, whole.total)
    torch.testing.assert_close(reference.gradients(total, logits), reference.gradients(whole.total, logits))
    total = sum(
        objective.linear_loss(hidden[half], lm_head_weight, labels[half], counts, bias).total for half in halves
    )
    torch.testing.assert_close(total, linear.total)
    ours, theirs = (torch.autograd.grad(x, lm_head_weight) for x in (total, linear.total))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast(name):
    """The logits of an autocast head come in half precision; the loss is computed in single all the same."""
    logits, labels = reference.batch(seed=16, dtype=torch.float32)
    numbers = reference.vocabulary()
    hidden, lm_head_weight, _ = head(logits)
    outside = linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels, numbers)
    results = []
    with torch.autocast("cpu", dtype=getattr(torch, name)):
        for which in ("fused", "plain"):
            made = torch.nn.functional.linear(hidden, lm_head_weight)
            options = {"reweigh": True, "return_parts": True, "implementation": which}
            results.append(cross_entropy_with_ntl(made, labels, numbers, **options))
        linear = linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels, numbers)
    assert made.dtype == getattr(torch, name)
    assert results[0][0].dtype == torch.float32
    compare(*results, [hidden, lm_head_weight], rtol=1e-2, atol=2e-2)
    compare((linear, {}), (outside, {}), [hidden, lm_head_weight])  # products in single precision on processors


def test_shapes_and_strides():
    logits, labels = reference.batch(seed=17)
    numbers = reference.vocabulary()
    strided = logits.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    compare(*both(strided, labels, numbers, place_value=2.0), [strided], **EXACT)
    flat = logits.detach().flatten(0, 1).requires_grad_()
    compare(*both(flat, labels.flatten(), numbers), [flat], **EXACT)


def test_scale_and_missing_bias():
    """As in a T5 whose embeddings are its head."""
    logits, labels = reference.batch(seed=18)
    hidden, lm_head_weight = head(logits, bias=False)
    numbers = reference.vocabulary()
    ours = linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels, numbers, scale=5**-0.5, return_parts=True)
    theirs = cross_entropy_with_ntl(hidden * 5**-0.5 @ lm_head_weight.T, labels, numbers, return_parts=True)
    compare(ours, theirs, [hidden, lm_head_weight], **EXACT)


def test_auto_goes_by_size(monkeypatch):
    logits, labels = reference.batch(seed=19)
    numbers = reference.vocabulary()
    seen = []
    inner = implementation.total_loss
    monkeypatch.setattr(implementation, "total_loss", lambda *a, **o: seen.append(1) or inner(*a, **o))
    few = cross_entropy_with_ntl(logits * 1, labels, numbers)
    assert not seen
    monkeypatch.setattr(losses, "FUSED_FROM", logits.numel())
    many = cross_entropy_with_ntl(logits * 1, labels, numbers)
    assert len(seen) == 1
    torch.testing.assert_close(few, many, **EXACT)
    cross_entropy(logits * 1, labels)
    assert len(seen) == 2
    # where it cannot be
    cross_entropy(logits * 1, labels, reduction="none")
    cross_entropy_with_ntl(logits * 1, labels, numbers, kind=lambda a, b: (a - b).abs())
    weights = torch.rand(labels.shape, requires_grad=True)
    cross_entropy_with_ntl(logits * 1, labels, numbers, loss_weights=weights).backward()
    assert weights.grad is not None
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "fast"}, "got implementation='fast', expected one of auto, plain, fused"),
        ({"implementation": "fused", "kind": torch.sub}, "got a callable kind for the fused implementation"),
        ({"implementation": "fused", "loss_weights": torch.ones(3, 9, requires_grad=True)}, "requires_grad"),
        ({"implementation": "fused", "label_smoothing": 1.0}, "label_smoothing"),
        ({"implementation": "fused", "weight": -1.0}, "weight"),
    ],
)
def test_bad_options(options, message):
    logits, labels = reference.batch()
    with pytest.raises(ValueError, match=message):
        cross_entropy_with_ntl(logits, labels, reference.vocabulary(), **options)


def test_bad_heads():
    logits, labels = reference.batch()
    hidden, lm_head_weight, bias = head(logits)
    numbers = reference.vocabulary()
    for inputs, options, message in (
        ((hidden, lm_head_weight.T), {}, r"got lm_head_weight of shape \(5, 24\)"),
        ((hidden, lm_head_weight), {"bias": bias[1:]}, r"got a bias of shape \(23,\), expected \(24,\)"),
        ((hidden[:2], lm_head_weight), {}, "one label for each hidden state"),
        ((hidden, lm_head_weight[:10]), {}, "got a number token with id 20 for logits of 10 columns"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_cross_entropy_with_ntl(*inputs, labels, numbers, **options)
    with pytest.raises(ValueError, match=r"got label 24"):
        linear_cross_entropy_with_ntl(hidden, lm_head_weight, labels.masked_fill(labels == -100, 24), numbers)
