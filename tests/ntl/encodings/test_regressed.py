"""xVal and the regression head: numbers as values on the way in, filled in on the way out."""

import math
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
    using = encoding("xval")
    text = using.encode("x is 4 and y is -2.5")["input_ids"]
    numbers = iter([4.0049, -2.5])
    first = [(index, next(numbers) if index == using.number_id else 9.9) for index in text]
    model = Scripted(using, [[*first, (1, 0.0)], [(using.number_id, 123.456)] * 40])
    prompts = {"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 3)}
    one, two = using.generate(model, prompts, max_new_tokens=len(first) + 3, num_beams=4)
    assert one.text == "x is 4 and y is -2.5"  # two decimals at most, as the training answers have
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
            said = using.scale.write(using.scale.restore(float(output.values[0, 0])))
            assert text.split()[0] == said
        else:
            assert using.encode(text)["input_ids"][0] == first or not using.decode([int(first)])


def test_the_value_matters():
    using, model, layout, _ = run("xval", "t5")
    small, large = (layout.prompt_batch([using.encode(f"What is {x}?")]) for x in ("3", "3000"))
    assert torch.equal(small["input_ids"], large["input_ids"])
    assert not torch.allclose(model.encode(**small).last_hidden_state, model.encode(**large).last_hidden_state)


@pytest.mark.parametrize(("name", "family"), [("scalar", "t5"), ("scalar", "gpt2"), ("xval_mask", "t5")])
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
        assert float(text) == pytest.approx(number, abs=0.006)  # as the answers: two decimals
        assert parse_number(text) is not None and not answers.truncated[index]
        answer = float(parse_number(ROWS[index]["answer"]))
        assert using.scale.restore(float(targets[index, place])) == pytest.approx(answer)


@pytest.mark.parametrize(("name", "family"), [("scalar", "t5"), ("scalar", "gpt2"), ("xval_mask", "t5")])
def test_the_answer_is_not_seen_by_what_predicts_it(name, family):
    using, _, layout, _ = run(name, family)
    batches = [
        layout.train_batch(list(EncodedDataset([{"question": "What is 3 + 4?", "answer": answer}], using)))
        for answer in ("7", "-25")
    ]
    one, other = (model_inputs(batch) for batch in batches)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("split", "answer"), [("train", "about 7"), ("test", "3 apples"), ("train", ""), ("test", "1 2"), ("train", "3-4")]
)
def test_the_head_refuses_answers_that_are_not_one_number(split, answer):
    rows = {"train": list(ROWS), "test": list(ROWS)}
    rows[split] = [*ROWS, {"question": "Which?", "answer": answer}]
    for name in ("scalar", "xval_mask"):
        with pytest.raises(ValueError, match=f"row 4 of the split '{split}'.*expected one number"):
            build(name, TrainedBPE(["text"] * 2, vocab_size=258)).fit(rows)


@pytest.mark.parametrize(
    ("name", "family", "options"),
    [
        ("rt", "t5", {"lowest": -3}),
        ("rt", "gpt2", {}),
        ("xval", "t5", {"significant": 5, "positions": 64}),
        ("xval_mask", "t5", {"decimals": 1}),
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
    assert loaded.encoding.options == using.options
    again = EncodedDataset(ROWS, loaded.encoding)
    assert str(again.items) == str(data.items)  # NaN is not equal to itself
    after = evaluation.answer(loaded.model, loaded.encoding, loaded.layout, again, settings, 8)
    assert after.texts == before.texts
    assert after.tokens == before.tokens


@pytest.mark.parametrize("name", ["xval", "scalar"])
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
    assert torch.equal(one.number_head.weight, same.number_head.weight)
    assert not torch.equal(one.number_head.weight, other.number_head.weight)
    assert 0.5 < float(one.number_head.weight.detach().std() * 32**0.5) < 1.5
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


def test_blanks_stand_for_the_answer():
    using, _, layout, data = run("xval_mask", "t5")
    batch, prompt = layout.train_batch(list(data)), layout.prompt_batch([question for question, _ in data])
    assert all(torch.equal(batch[key], prompt[key]) for key in prompt)
    blanks = batch["input_ids"] == using.blank
    assert blanks.sum(1).eq(1).all()
    assert torch.equal(blanks, batch["labels"] != -100) and torch.equal(blanks, batch["labels_value"].isfinite())
    assert batch["labels"][blanks].eq(using.number_id).all()
    answers = [float(parse_number(row["answer"])) for row in ROWS]
    expected = [math.copysign(math.log(abs(x) + 1), x) for x in answers]
    assert batch["labels_value"][blanks].tolist() == pytest.approx(expected)
    after = batch["input_ids"][:, 1:][blanks[:, :-1]]
    assert after.eq(using.tokenizer.eos_token_id).all()


@settings(max_examples=50, deadline=None)
@given(st.decimals(-(10**6), 10**6, places=2, allow_nan=False))
def test_a_number_of_seven_digits_survives_single_precision(number):
    using = encoding("xval")
    z = float(torch.tensor(using.scale.standardise(float(number))))
    assert abs(float(using.scale.write(using.scale.restore(z))) - float(number)) <= 2e-5 * abs(float(number)) + 1e-4


@pytest.mark.parametrize("name", ["xval", "xval_mask", "scalar"])
def test_numbers_keep_single_precision_under_autocast(name):
    _, model, layout, data = run(name, "t5")
    inputs = model_inputs(layout.train_batch(list(data)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = model(**inputs).values
    assert values.dtype == torch.float32
    half = values.detach().bfloat16().float()
    assert (values != half).any()
