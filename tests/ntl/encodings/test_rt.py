"""The Regression Transformer's encoding: round trips, rounding, ill-formed numbers, value embeddings."""

import math
from functools import cache

import pytest
import torch
from helpers import tiny
from helpers.shared_data import shared
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl import models
from ntl.encodings import PretrainedTokenizer, TrainedBPE, build
from ntl.encodings.rt import value_embedding

TEXTS = ["What is 3 + 4.5?", "12 _1_0_ -7", "the answer is"]


@cache
def rt(source="bpe", **options):
    if source == "bpe":
        return build("rt", TrainedBPE(TEXTS * 2, vocab_size=280), **options)
    return build("rt", PretrainedTokenizer(str(shared(f"tokenizers/{source}"))), **options)


def tokens(text, using=None):
    using = using or rt()
    return using.tokenizer.convert_ids_to_tokens(using.encode(text)["input_ids"])


def read(*spelt):
    using = rt()
    using.take_report()
    text = using.decode(using.tokenizer.convert_tokens_to_ids(list(spelt)))
    return text, using.take_report().get("ill_formed", 0)


def test_a_digit_carries_its_place():
    assert tokens("-812.05") == ["-", "_8_2_", "_1_1_", "_2_0_", "_0_-1_", "_5_-2_"]
    assert tokens("1.2.3") == ["_1_0_", "_2_-1_", ".", "_3_0_"]
    assert tokens("5.") == ["_5_0_", "."]


whole = st.text("0123456789", min_size=1, max_size=20)
decimals = st.text("0123456789", max_size=12)
numbers = st.builds(lambda sign, a, b: f"{sign}{a}.{b}" if b else sign + a, st.sampled_from(["", "-"]), whole, decimals)


@settings(deadline=None)
@given(numbers, st.sampled_from(["{}", "What is {}?", "x={},", "{} and {}"]))
def test_numbers_of_twelve_decimals_come_back(number, frame):
    text = frame.format(number, number)
    using = rt()
    using.take_report()
    ids = using.encode(text)["input_ids"]
    assert using.decode(ids) == text
    assert using.take_report() == {}
    plain = set(using._digit_of)
    assert not plain & set(ids)  # no digit is left as text


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back(text):
    # runs of more than 20 digits too, which stay in plain digits; only long decimals are rounded
    using = rt()
    using.take_report()
    decoded = using.decode(using.encode(text)["input_ids"])
    assert decoded == text or using.take_report().get("rounded")


@pytest.mark.parametrize("source", ["t5", "gpt2"])
@settings(max_examples=50, deadline=None)
@given(number=numbers)
def test_numbers_come_back_from_published_tokenizers(source, number):
    using = rt(source)
    assert using.decode(using.encode(f"It is {number} or so")["input_ids"]) == f"It is {number} or so"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("0.1234567890125", "0.123456789013"),  # half goes up
        ("0.12345678901249", "0.123456789012"),
        ("-0.0000000000005", "-0.000000000001"),  # away from zero: the sign is text
        ("9.9999999999999", "10.000000000000"),
        ("99999999999999999999.9999999999999", "99999999999999999999.9999999999999"),  # 10²⁰ has no place
        ("123456789012345678901", "123456789012345678901"),
    ],
)
def test_what_has_no_place_is_rounded_or_left(number, expected):
    using = rt()
    using.take_report()
    assert using.decode(using.encode(number)["input_ids"]) == expected
    assert using.take_report() == ({"too_large": 1} if number == expected else {"rounded": 1})


@pytest.mark.parametrize(
    ("spelt", "text", "ill_formed"),
    [
        (("_8_2_", "_0_1_", "_5_0_"), "805", 0),
        (("_8_2_",), "800", 1),  # missing trailing places are zeros
        (("_8_2_", "_5_0_"), "805", 1),
        (("_5_-1_",), "0.5", 1),
        (("_1_0_", "_5_-3_"), "1.005", 1),
        (("_1_0_", "_2_0_"), "1 2", 1),  # the place does not fall: the number ends
        (("_1_0_", "_2_1_", "_3_0_"), "1 23", 1),
        (("-", "_7_0_", ".", "_7_0_"), "-7.7", 0),
        ((), "", 0),
    ],
)
def test_ill_formed_numbers_are_read_and_counted(spelt, text, ill_formed):
    assert read(*spelt) == (text, ill_formed)


def test_a_token_spelt_in_a_text_is_text():
    assert tokens("_1_0_")[0] == "_"


def test_places_by_option():
    using = rt(lowest=-1, highest=2)
    assert len(using.numbers) == 40
    assert using.decode(using.encode("999.94 1000")["input_ids"]) == "999.9 1000"
    assert using.take_report() == {"rounded": 1, "too_large": 1}
    for bad in ({"lowest": 1}, {"highest": -1}, {"lowest": 0.5}):
        with pytest.raises(ValueError, match=r"got .*, expected an integer of at"):
            rt(**bad)


def test_for_the_loss_a_token_is_worth_its_digit():
    using = rt()
    ids = torch.tensor(using.encode("-812.05")["input_ids"])
    index = using.numbers.lookup(ids)
    assert (index >= 0).tolist() == [False, *[True] * 5]
    assert using.numbers.values[index[1:]].tolist() == [8, 1, 2, 0, 5]
    assert using.numbers.places(ids)[1:].tolist() == [2, 1, 0, -1, -2]


def test_the_value_embedding():
    def f(x):
        return math.copysign(math.log10(abs(x) + 1), x) / (math.log10(3e9) / 10)

    embedding = value_embedding(800.0, 5).tolist()
    assert embedding == pytest.approx([f(800), -f(800), f(800 / 3), -f(800 / 3), f(800 / 5)])
    assert not value_embedding(0.0, 4).any()
    assert float(value_embedding(3e9 - 1, 1)) == pytest.approx(10.0)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_values_are_added_wherever_tokens_are_embedded(family):
    using = rt()
    model = tiny.model(family, using=using)
    rows = torch.tensor(using.encode("Is -0.5 a number?")["input_ids"])
    learnt = model.get_input_embeddings().weight[rows]
    worth = {"_0_0_": 0.0, "_5_-1_": 0.5}
    spelt = using.tokenizer.convert_ids_to_tokens(rows.tolist())
    assert set(worth) < set(spelt)
    fixed = torch.stack([value_embedding(worth.get(token, 0.0), learnt.shape[1]) for token in spelt]).float()
    stacks = [model.encoder, model.decoder] if family == "t5" else [model.transformer]
    name = "embed_tokens" if family == "t5" else "wte"
    for stack in stacks:
        torch.testing.assert_close(getattr(stack, name)(rows), learnt + fixed)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not [key for key in model.state_dict() if "value_embeddings" in key]


def test_a_published_model_makes_room(tmp_path):
    config = tiny.settings("t5")
    plain = tiny.encoding()
    models.build(config, plain, 0).save_pretrained(tmp_path)
    plain.save(tmp_path)
    config.init = config.tokenizer = "pretrained"
    config.path = str(tmp_path)
    source = models.tokenizer_source(config, [])
    one, same = (models.build(config, build("rt", source), seed=0) for _ in range(2))
    using = build("rt", source)
    assert one.config.vocab_size % 64 == 0 and one.config.vocab_size >= len(using.tokenizer) > len(plain.tokenizer)
    assert torch.equal(one.shared.weight, same.shared.weight)  # new rows come from the seed
