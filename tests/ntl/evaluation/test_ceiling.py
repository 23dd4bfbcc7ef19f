"""What a perfect model reaches: references written in an encoding and read back."""

import json

import pytest
from helpers.shared_data import shared

from data_prep.multirc import by_passage, file_answers
from ntl.data import EncodedDataset
from ntl.encodings import PretrainedTokenizer, TrainedBPE, build
from ntl.evaluation.score import perfect, score
from ntl.number_grammar import parse_number

NUMBERS = ["7", "-12.5", "0", "1234567.25", "0.000123", "-999999937"]


def rows(answers):
    return [{"question": "?", "answer": answer} for answer in answers]


def ceiling(encoding, answers, kind):
    data = EncodedDataset(rows(answers), encoding)
    return score(perfect(data, encoding), data.rows, kind=kind, fill=None).metrics["all"]


def test_t5_cannot_write_every_reference_of_multirc():
    passages = by_passage(file_answers(shared("multirc/val.jsonl")))
    answers = [row["answer"] for members in passages.values() for row in members]
    t5 = build("digits", PretrainedTokenizer(str(shared("tokenizers/t5"))))
    changed = sum(t5.decode(t5.encode(answer)["input_ids"]) != answer.strip() for answer in answers)
    assert changed > 0
    reached = ceiling(t5, answers, "text")
    assert reached["accuracy"] == 1 - changed / len(answers)
    assert 0.97 < reached["rouge1"] < 1
    trained = build("digits", TrainedBPE(answers, 400, marker=True))
    assert {ceiling(trained, answers, "text")[name] for name in ("accuracy", "rouge1")} == {1.0}


@pytest.mark.parametrize("name", ["digits", "subword", "rt"])
def test_encodings_that_write_digits_lose_no_number(name):
    encoding = build(name, TrainedBPE(NUMBERS * 2, 300, marker=True))
    encoding.fit({"train": rows(NUMBERS)})
    reached = ceiling(encoding, NUMBERS, "number")
    assert (reached["accuracy"], reached["mae"]) == (1, 0)
    assert not encoding.take_report()


@pytest.mark.parametrize("name", ["xval", "xval_mask", "scalar"])
def test_encodings_that_regress_write_what_single_precision_holds(name):
    encoding = build(name, TrainedBPE(NUMBERS * 2, 300, marker=True))
    encoding.fit({"train": rows(NUMBERS)})
    reached = ceiling(encoding, NUMBERS, "number")
    written = [encoding.perfect_answer(encoding.encode_answer(text)) for text in NUMBERS]
    exact = sum(parse_number(text) == parse_number(reference) for text, reference in zip(written, NUMBERS, strict=True))
    assert reached["accuracy"] == exact / len(NUMBERS) < 1
    assert 0 < reached["mae"] < 1e-4 * max(abs(float(text)) for text in NUMBERS)


def test_a_reference_that_spells_a_special_token_is_text():
    encoding = build("digits", TrainedBPE(["7</s>8"], 300, marker=True))
    assert ceiling(encoding, ["7</s>8", json.dumps({"a": "<pad>"})], "text")["accuracy"] == 1
