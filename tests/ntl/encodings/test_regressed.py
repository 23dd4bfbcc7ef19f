"""xVal and the regression head: numbers as values on the way in, filled in on the way out."""

import math
import random
from functools import cache

import pytest
import torch
from helpers import tiny
from helpers.shared_data import shared
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl import predict as saving
from ntl.data import EncodedDataset, layout_for, model_inputs
from ntl.encodings import PretrainedTokenizer, TrainedBPE, build
from ntl.evaluation import answer as evaluation
from ntl.evaluation.metrics import TokenStats
from ntl.evaluation.score import score
from ntl.number_grammar import numbers_in, parse_number
from ntl.settings import EvalSettings

ROWS = [
    {"question": "What is 3 + 4?", "answer": "7"},
    {"question": "Let x be -12.5. What is 2 * x?", "answer": "-25.0"},
    {"question": "What is 1.25 + 1?", "answer": "2.25"},
]


@cache
def encoding(name, **options):
    texts = [row[part] for row in ROWS for part in row] + ["x is 4 and y is -2.5"]
    made = build(name, TrainedBPE(texts * 2, vocab_size=300), **options)
    made.fit({"train": ROWS})
    return made


def log_scaled(x):
    return math.copysign(math.log10(abs(x) + 1), x) / (math.log10(3e9) / 10)


def test_every_number_is_one_scaled_token():
    using = encoding("xval")
    encoded = using.encode("2 * -12.5 = -25, not [NUM] or 0.5!")
    where = [k for k, index in enumerate(encoded["input_ids"]) if index == using.number_id]
    numbers = [2.0, -12.5, -25.0, 0.5]
    assert [encoded["values"][k] for k in where] == pytest.approx([log_scaled(x) for x in numbers])
    assert [using.scale.restore(encoded["value"][k]) for k in where] == pytest.approx(numbers)
    rest = [k for k in range(len(encoded["values"])) if k not in where]
    assert all(encoded["values"][k] == 1.0 and math.isnan(encoded["value"][k]) for k in rest)
    text = using.decode(encoded["input_ids"], ["2", "-12.5", "-25", "0.5"])
    assert text == "2 * -12.5 = -25, not [NUM] or 0.5!"  # the text's own [NUM] is no number


def test_without_logarithm_the_value_plus_one():
    encoded = encoding("xval", log=False).encode("7 -12.5")
    assert [v for v in encoded["values"] if v != 1.0] == [8.0, -11.5]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_comes_back(text):
    using = encoding("xval")
    encoded = using.encode(text)
    assert using.decode(encoded["input_ids"], [found.group() for found in numbers_in(text)]) == text


@pytest.mark.parametrize("text", ["What is -3.5 - 4?", "is -7", "x² is 1,000", "(3)-4"])
def test_published_tokenizers_keep_every_number(text):
    using = build("xval", PretrainedTokenizer(str(shared("tokenizers/t5"))))
    encoded = using.encode(text)
    normal = using.tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    spelt = [found.group() for found in numbers_in(normal)]
    assert encoded["input_ids"].count(using.number_id) == len(spelt)
    assert using.decode(encoded["input_ids"], spelt) == normal


def test_two_numbers_side_by_side_stay_two():
    using = encoding("xval")
    assert using.decode([using.number_id] * 2, ["1", "2"]) == "1 2"


class Scripted(torch.nn.Module):
    """Stands in for a model: says given tokens and numbers, and notes what it was given to go on from."""

    def __init__(self, using, script):
        super().__init__()
        self.script, self.using, self.seen = script, using, []
        self.config = tiny.model("t5").config
        self.device = torch.device("cpu")

    def encode(self, **prompts):
        return None

    def forward(self, encoder_outputs, attention_mask, decoder_input_ids, decoder_values):
        self.seen.append((decoder_input_ids.clone(), decoder_values.clone()))
        step = decoder_input_ids.shape[1] - 1
        logits = torch.zeros(len(self.script), step + 1, len(self.using.tokenizer))
        values = torch.zeros(len(self.script), step + 1)
        for row, says in enumerate(self.script):
            token, number = says[step] if step < len(says) else (1, 0.0)
            logits[row, -1, token] = 1.0
            values[row, -1] = self.using.scale.standardise(number)
        return type("Output", (), {"logits": logits, "values": values})


def test_generation_fills_in_several_numbers():
    using = encoding("xval", decimals=2)
    text = using.encode("x is 4 and y is -2.5")["input_ids"]
    numbers = iter([4.0049, -2.5])
    first = [(index, next(numbers) if index == using.number_id else 9.9) for index in text]
    model = Scripted(using, [[*first, (1, 0.0)], [(using.number_id, 123.456)] * 40])
    prompts = {"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3)}
    one, two = using.generate(model, prompts, max_new_tokens=len(first) + 3, num_beams=4)
    assert one.text == "x is 4 and y is -2.5"
    assert not one.truncated and one.ids == text
    assert two.truncated and two.text == " ".join(["123.46"] * (len(first) + 3))
    ids, values = model.seen[-1]
    assert ids[0, 0] == model.config.decoder_start_token_id and values[0, 0] == 1.0
    # what was said is what it goes on from: the rounded numbers, and 1 for text
    place = text.index(using.number_id)
    assert values[0, 1 + place] == pytest.approx(log_scaled(4.0))
    assert values[0, 1 : len(text) + 1][torch.tensor(text) != using.number_id].eq(1).all()
    assert values[1, 1:].tolist() == pytest.approx([log_scaled(123.46)] * (values.shape[1] - 1))


def run(name, family, **options):
    using = encoding(name, **options)
    model = tiny.model(family, using=using, spread=0.3)
    layout, data = layout_for(family == "t5", using), EncodedDataset(ROWS, using)
    return using, model, layout, data


@pytest.mark.parametrize("log", [True, False])
def test_xval_answers_what_teacher_forcing_predicts(log):
    using, model, layout, data = run("xval", "t5", log=log)
    generated = evaluation.answer(model, using, layout, data, EvalSettings(beams=1), 6)
    for index, text in enumerate(generated.texts):
        row = {"question": ROWS[index]["question"], "answer": text}
        batch = layout.train_batch(list(EncodedDataset([row], using)))
        output = model(**model_inputs(batch))
        first = output.logits[0, 0].argmax()
        if first == using.number_id:
            said = using.scale.restore(float(output.values[0, 0]))
            assert float(text.split()[0]) == pytest.approx(said, rel=1e-5, abs=1e-5)
        else:
            assert using.encode(text)["input_ids"][0] == first or not using.decode([int(first)])


def test_the_value_matters():
    using, model, layout, _ = run("xval", "t5")
    small, large = (layout.prompt_batch([using.encode(f"What is {x}?")]) for x in ("3", "3000"))
    assert torch.equal(small["input_ids"], large["input_ids"])
    assert not torch.allclose(model.encode(**small).last_hidden_state, model.encode(**large).last_hidden_state)


ONE_NUMBER = [("scalar", "t5"), ("scalar", "gpt2"), ("xval_mask", "t5"), ("xval_mask_signed", "t5")]


@pytest.mark.parametrize(("name", "family"), ONE_NUMBER)
def test_the_head_prints_its_number(name, family):
    using, model, layout, data = run(name, family)
    answers = evaluation.answer(model, using, layout, data, EvalSettings(beams=4), 12)
    batch = layout.train_batch(list(data))
    predicted = model(**model_inputs(batch)).values.detach()
    targets = batch["labels_value"]
    assert targets.isfinite().sum(1).eq(1).all()
    for index, text in enumerate(answers.texts):
        place = int(targets[index].isfinite().nonzero())
        number = using.scale.restore(float(predicted[index, place]))
        answer = float(parse_number(ROWS[index]["answer"]))
        if name == "xval_mask":  # the sign is written from the prompt
            number, answer = math.copysign(1, answer) * number, abs(answer)
        assert float(text) == pytest.approx(number, rel=1e-5)
        assert parse_number(text) is not None and not answers.truncated[index]
        assert using.scale.restore(float(targets[index, place])) == pytest.approx(answer)


@pytest.mark.parametrize(("name", "family"), ONE_NUMBER)
def test_the_answer_is_not_seen_by_what_predicts_it(name, family):
    using, _, layout, _ = run(name, family)
    batches = [
        layout.train_batch(list(EncodedDataset([{"question": "What is 3 + 4?", "answer": answer}], using)))
        for answer in (("-7", "-25") if name == "xval_mask" else ("7", "-25"))  # but for the published one's sign
    ]
    one, other = (model_inputs(batch) for batch in batches)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("split", "answer"), [("train", "about 7"), ("test", "3 apples"), ("train", ""), ("test", "1 2"), ("train", "3-4")]
)
def test_the_head_refuses_answers_that_are_not_one_number(split, answer):
    rows = {"train": list(ROWS), "test": list(ROWS)}
    rows[split] = [*ROWS, {"question": "Which?", "answer": answer}]
    for name in ("scalar", "xval_mask", "xval_mask_signed"):
        with pytest.raises(ValueError, match=f"row 4 of the split '{split}'.*expected one number"):
            build(name, TrainedBPE(["text"] * 2, vocab_size=258)).fit(rows)


@pytest.mark.parametrize(
    ("name", "family", "options"),
    [
        ("rt", "t5", {"lowest": -3}),
        ("rt", "gpt2", {}),
        ("xval", "t5", {"significant": 5, "positions": 64}),
        ("xval_mask", "t5", {"decimals": 1}),
        ("xval_mask_signed", "t5", {"log": False}),
        ("scalar", "t5", {"log": True}),
        ("scalar", "gpt2", {"standardise": False}),
    ],
)
def test_a_saved_model_answers_the_same(name, family, options, tmp_path):
    using, model, layout, data = run(name, family, **options)
    settings = EvalSettings(beams=1)
    before = evaluation.answer(model, using, layout, data, settings, 8)
    saving.save(tmp_path / "model", saving.Trained(model, using, layout, settings, 8), "answer")
    loaded = saving.load(tmp_path / "model")
    assert loaded.encoding.arguments == using.arguments
    again = EncodedDataset(ROWS, loaded.encoding)
    assert str(again.items) == str(data.items)  # NaN is not equal to itself
    after = evaluation.answer(loaded.model, loaded.encoding, loaded.layout, again, settings, 8)
    assert after.texts == before.texts
    assert after.tokens == before.tokens


@pytest.mark.parametrize("name", ["xval", "scalar", "xval_mask_signed"])
def test_published_weights_get_a_head_drawn_from_the_seed(name, tmp_path):
    from ntl import models

    config, plain = tiny.settings("t5"), tiny.encoding("subword")
    given_model = models.build(config, plain, 0)
    given_model.save_pretrained(tmp_path)
    plain.save(tmp_path)
    config.init = config.tokenizer = "pretrained"
    config.path = str(tmp_path)
    using = build(name, models.tokenizer_source(config, []))
    one, same, other = (models.build(config, using, seed) for seed in (0, 0, 1))
    assert torch.equal(one.encoder.block[0].layer[0].SelfAttention.q.weight,
                       given_model.encoder.block[0].layer[0].SelfAttention.q.weight)  # fmt: skip
    for layer in (k for k, part in enumerate(one.number_head) if isinstance(part, torch.nn.Linear)):
        drawn = [model.number_head[layer].weight.detach() for model in (one, same, other)]
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
        assert 0.5 < float(drawn[0].std() * drawn[0].shape[1] ** 0.5) < 1.5
    rows = len(plain.tokenizer)
    torch.testing.assert_close(one.shared.weight[:rows], given_model.shared.weight[:rows])


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_the_head_shares_its_body_with_the_language_model(family):
    head, language = tiny.model(family, using=encoding("scalar")), tiny.model(family, using=tiny.encoding())
    theirs = dict(language.named_parameters())
    shared_names = [name for name, _ in head.named_parameters() if "block" in name or name.startswith("h.")]
    assert shared_names
    for name in shared_names:
        assert torch.equal(head.get_parameter(name), theirs[name if family == "t5" else f"transformer.{name}"]), name


@pytest.mark.parametrize("name", ["xval_mask", "xval_mask_signed"])
def test_blanks_stand_for_the_answer(name):
    using, _, layout, data = run(name, "t5")
    batch, prompt = layout.train_batch(list(data)), layout.prompt_batch([layout.given(item) for item in data])
    assert all(torch.equal(batch[key], prompt[key]) for key in prompt)
    blanks = batch["input_ids"] == using.blank
    assert blanks.sum(1).eq(1).all()
    assert torch.equal(blanks, batch["labels"] != -100) and torch.equal(blanks, batch["labels_value"].isfinite())
    assert batch["labels"][blanks].eq(using.number_id).all()
    answers = [float(parse_number(row["answer"])) for row in ROWS]
    answers = [abs(x) for x in answers] if name == "xval_mask" else answers
    expected = [math.copysign(math.log(abs(x) + 1), x) for x in answers]
    assert batch["labels_value"][blanks].tolist() == pytest.approx(expected)
    after = batch["input_ids"][:, 1:][blanks[:, :-1]]
    assert after.eq(using.tokenizer.eos_token_id).all()


def test_published_xval_reads_unsigned_numbers_and_is_shown_the_sign():
    using, model, layout, _ = run("xval_mask", "t5")
    encoded = using.encode("2 * -12.5 = -25, 3,4 and 5")
    numbers = [(index, value) for index, value in zip(encoded["input_ids"], encoded["values"], strict=True)]
    read = [value for index, value in numbers if index == using.number_id]
    assert read == pytest.approx([math.log1p(x) for x in (2, 12.5, 25, 3, 4, 5)])
    assert using.decode(encoded["input_ids"], ["2", "12.5", "25", "3", "4", "5"]) == "2 * -12.5 = -25 3 4 and 5"
    question = using.encode("What is x?")["input_ids"]
    items = list(EncodedDataset([{"question": "What is x?", "answer": text} for text in ("7", "-7")], using))
    shown = [layout.given(item)["input_ids"] for item in items]
    assert shown[0] == question and using.decode(shown[1]) == "What is x? -"
    answers = using.generate(model, layout.prompt_batch([layout.given(item) for item in items]), max_new_tokens=5)
    predicted = model(**model_inputs(layout.train_batch(items))).values
    for answer, sign, row in zip(answers, (1, -1), predicted.tolist(), strict=True):
        z = row[len(question) + (len(shown[1]) - len(question)) * (sign < 0)]
        assert float(answer.text) == pytest.approx(sign * math.copysign(math.expm1(abs(z)), z), rel=1e-5)
    asked = using.generate(model, layout.prompt_batch([using.encode("What is x? -")]), max_new_tokens=5)
    assert float(asked[0].text) == pytest.approx(float(answers[1].text), rel=1e-5)
    with pytest.raises(ValueError, match=r"row 1 of the split 'test'.*ends with a minus sign"):
        using.fit({"train": ROWS, "test": [{"question": "What is 5 - ", "answer": "3"}]})


def test_a_long_question_is_cut_before_the_sign():
    using, _, layout, _ = run("xval_mask", "t5")
    data = EncodedDataset([{"question": "a " * 30, "answer": "-7"}], using, question_tokens=5)
    assert (
        len(layout.given(data[0])["input_ids"]) == 5 + 1 and using.decode(layout.given(data[0])["input_ids"])[-1] == "-"
    )


def test_published_xval_is_an_encoder_with_layer_norms_first_and_two_heads():
    """Its own formulas, from the weights: two heads of attention, GELU, and no norm at the end."""
    _, model, layout, data = run("xval_mask", "t5")
    batch = layout.train_batch(list(data))
    weights = dict(model.named_parameters())
    functional, value = torch.nn.functional, batch["values"][..., None]
    places = torch.arange(batch["input_ids"].shape[1])
    x = weights["tokens.weight"][batch["input_ids"]] * value + weights["positions.weight"][places]

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    layer = "encoder.layers.0"
    attention = linear_input = norm(x, f"{layer}.norm1")
    parts = functional.linear(
        linear_input, weights[f"{layer}.self_attn.in_proj_weight"], weights[f"{layer}.self_attn.in_proj_bias"]
    ).chunk(3, -1)
    query, key, val = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
    scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
    scores = scores.masked_fill(batch["attention_mask"][:, None, None] == 0, -math.inf)
    attention = (scores.softmax(-1) @ val).transpose(1, 2).flatten(-2)
    x = x + linear(attention, f"{layer}.self_attn.out_proj")
    x = x + linear(functional.gelu(linear(norm(x, f"{layer}.norm2"), f"{layer}.linear1")), f"{layer}.linear2")
    heads = ("token_head", "number_head")
    tokens, numbers = (linear(functional.gelu(linear(x, f"{head}.0")), f"{head}.2") for head in heads)
    output = model(**model_inputs(batch))
    seen = batch["attention_mask"].bool()
    torch.testing.assert_close(output.logits[seen], tokens[seen])
    torch.testing.assert_close(output.values[seen], numbers[..., 0][seen])
    assert not any(name.startswith("token_head") and name.endswith("bias") for name in weights)
    assert sum(parameter.numel() for parameter in weights.values()) == model.num_parameters()


def test_weights_of_published_xval_are_drawn_by_name_as_pytorch_draws_them():
    one, same, other = (tiny.model("t5", seed=seed, using=encoding("xval_mask")) for seed in (0, 0, 1))
    deeper = tiny.model("t5", using=encoding("xval_mask"), architecture={"num_layers": 2})
    for name, weight in one.named_parameters():
        assert torch.equal(weight, same.get_parameter(name)) and torch.equal(weight, deeper.get_parameter(name)), name
        constant = bool((weight == weight.flatten()[0]).all())  # norms, and the biases of attention
        assert constant or not torch.equal(weight, other.get_parameter(name)), name
        if name.endswith((".0.weight", "linear1.weight")):  # uniform up to 1 / √inputs
            assert 0.9 < float(weight.detach().abs().max()) * weight.shape[1] ** 0.5 <= 1.0


def test_published_xval_is_built_from_scratch():
    from ntl.models import check

    config = tiny.settings("t5", init="pretrained", tokenizer="pretrained", hub="t5-small")
    with pytest.raises(ValueError, match=r"'xval_mask'.*set model\.init=scratch"):
        check(config, type(encoding("xval_mask")))


def test_the_regression_head_of_t5_is_the_librarys_classifier_with_one_output():
    from transformers import T5ForSequenceClassification

    _, model, layout, data = run("scalar", "t5")
    config = model.config
    config.num_labels = 1
    theirs = T5ForSequenceClassification(config).eval()
    names = {"number_head.1": "classification_head.dense", "number_head.4": "classification_head.out_proj"}
    for name, weight in model.state_dict().items():
        part, _, kind = name.rpartition(".")
        theirs.get_parameter(f"{names[part]}.{kind}" if part in names else f"transformer.{name}").data.copy_(weight)
    batch = layout.train_batch(list(data))
    assert batch["labels"].shape == batch["labels_value"].shape == (len(ROWS), 1)
    expected = theirs(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(model(**model_inputs(batch)).values, expected)


def test_the_regression_head_of_a_causal_model_reads_the_state_at_the_line_break():
    using, model, layout, data = run("scalar", "gpt2")
    dense, out = model.number_head[1], model.number_head[4]
    values = model(**model_inputs(layout.train_batch(list(data)))).values
    for value, (question, _) in zip(values, data, strict=True):
        ids = [*question["input_ids"], *using.encode("\n")["input_ids"]]
        state = type(model).__mro__[2].forward(model, torch.tensor([ids])).last_hidden_state[0, -1]
        torch.testing.assert_close(value, out(torch.tanh(dense(state))))


PADDED = [("xval", "t5"), *ONE_NUMBER]


@pytest.mark.parametrize(("name", "family"), PADDED)
def test_an_answer_does_not_depend_on_the_padding_of_its_batch(name, family):
    """All questions in one batch, padded, against each alone."""
    using, model, layout, _ = run(name, family)
    if name == "xval":  # an untrained model rarely writes numbers, or ends
        model.lm_head.weight.data[[using.number_id, using.tokenizer.eos_token_id]] *= 8
    rows = [*ROWS, {"question": "7", "answer": "1"}, {"question": "Let x be 3 and y be 4 or 5. " * 3, "answer": "-2"}]
    questions = [layout.given(item) for item in EncodedDataset(rows, using)]
    together = using.generate(model, layout.prompt_batch(questions), max_new_tokens=8)
    assert len({len(question["input_ids"]) for question in questions}) > 2
    numbers = 0
    for answer, question in zip(together, questions, strict=True):
        (alone,) = using.generate(model, layout.prompt_batch([question]), max_new_tokens=8)
        assert (answer.ids, answer.truncated) == (alone.ids, alone.truncated)
        both = [[float(found.group()) for found in numbers_in(text)] for text in (answer.text, alone.text)]
        assert both[0] == pytest.approx(both[1], rel=1e-4)
        numbers += len(both[0])
    assert numbers >= len(rows)
    assert name != "xval" or {answer.truncated for answer in together} == {True, False}  # one ends, another goes on


@settings(max_examples=50, deadline=None)
@given(st.decimals(-(10**6), 10**6, places=2, allow_nan=False))
def test_a_number_of_seven_digits_survives_single_precision(number):
    using = encoding("xval")
    z = float(torch.tensor(using.scale.standardise(float(number))))
    assert abs(float(using.scale.text(z)) - float(number)) <= 2e-5 * abs(float(number)) + 1e-4


@pytest.mark.parametrize("name", ["xval", "xval_mask_signed", "xval_mask"])
def test_outputs_that_are_exact_in_single_precision_are_right_zeros_too(name):
    draw = random.Random(0)
    numbers = [0.0] * 6 + [draw.choice((1, -1)) * round(10 ** draw.uniform(-2, 7), 2) for _ in range(94)]
    numbers = [abs(number) for number in numbers] if name == "xval_mask" else numbers
    rows = [{"question": "Which?", "answer": f"{number:.2f}"} for number in numbers]
    using = build(name, TrainedBPE(["text"] * 2, vocab_size=258))
    using.fit({"train": rows})
    outputs = torch.tensor([using.scale.standardise(number * (1 + 1e-6)) for number in numbers])
    texts = [using.scale.text(z) for z in outputs.tolist()]
    tokens = [TokenStats()] * len(rows)
    scored = score(evaluation.Answers(texts, [False] * len(rows), tokens), rows, kind="number", fill="0")
    assert scored.metrics["all"]["accuracy_isclose"] == 1.0
    assert texts[:6] == ["0"] * 6


@pytest.mark.parametrize("name", ["xval", "xval_mask", "xval_mask_signed", "scalar"])
def test_numbers_keep_single_precision_under_autocast(name):
    _, model, layout, data = run(name, "t5")
    inputs = model_inputs(layout.train_batch(list(data)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = model(**inputs).values
    assert values.dtype == torch.float32
    half = values.detach().bfloat16().float()
    assert (values != half).any()
