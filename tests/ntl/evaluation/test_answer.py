"""Questions in, answers in their order out, whatever the batches; and what is counted on the way."""

import math

import pytest
import torch
from helpers import tiny

from ntl.data import EncodedDataset, model_inputs
from ntl.evaluation import answer as evaluation
from ntl.evaluation.metrics import TokenStats
from ntl.evaluation.score import constant, score
from ntl.numbers import IGNORE_INDEX
from ntl.settings import EvalSettings

FAMILIES = ("t5", "gpt2")


def answer(model, family, rows=tiny.ROWS, limit=12, **options):
    settings = EvalSettings(**({"beams": 1} | options))
    evaluation.check(settings)
    using = tiny.encoding()
    return evaluation.answer(model, using, tiny.layout(family), EncodedDataset(rows, using), settings, limit)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_do_not_depend_on_the_batches(family, beams):
    model = tiny.model(family, spread=0.7)
    single = answer(model, family, beams=beams, batch_size=1)
    for size in (3, 64):
        given = answer(model, family, beams=beams, batch_size=size)
        assert given.texts == single.texts
        assert given.truncated == single.truncated
        assert [t.tokens for t in given.tokens] == [t.tokens for t in single.tokens]
        assert [t.correct for t in given.tokens] == [t.correct for t in single.tokens]
        for here, there in zip(given.tokens, single.tokens, strict=True):
            assert here.nll_sum == pytest.approx(there.nll_sum, rel=1e-4)
    assert len(set(single.texts)) > 2  # answers depend on their questions, so their order shows


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_the_questions_is_kept(family):
    model = tiny.model(family, spread=0.7)
    forwards = answer(model, family, batch_size=3)
    backwards = answer(model, family, rows=tiny.ROWS[::-1], batch_size=3)
    assert forwards.texts == backwards.texts[::-1]
    assert [t.tokens for t in forwards.tokens] == [t.tokens for t in backwards.tokens][::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_token_statistics_count_answer_tokens_and_nothing_else(family):
    model = tiny.model(family, spread=0.7)
    given = answer(model, family, batch_size=64)
    for row, stats in zip(tiny.dataset(), given.tokens, strict=True):
        batch = tiny.layout(family).train_batch([row])
        logits = model(**model_inputs(batch)).logits[0].detach().double()
        seen = batch["labels"][0] != IGNORE_INDEX
        labels = batch["labels"][0][seen]
        assert stats.tokens == len(row[1]["input_ids"]) + 1
        assert stats.correct == int((logits[seen].argmax(-1) == labels).sum())
        expected = -logits[seen].log_softmax(-1)[torch.arange(len(labels)), labels].sum()
        assert stats.nll_sum == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_digit_error_is_the_distance_of_expected_digits_over_the_answers_digits(family):
    model = tiny.model(family, spread=0.7)
    found = answer(model, family, batch_size=64).tokens
    numbers = tiny.encoding().numbers
    for row, (_, reference), stats in zip(tiny.ROWS, tiny.dataset(), found, strict=True):
        batch = tiny.layout(family).train_batch([(tiny.encoding().encode(row["question"]), reference)])
        probabilities = model(**model_inputs(batch)).logits[0].detach().double()[:, numbers.ids].softmax(-1)
        labels = batch["labels"][0].tolist()
        values = dict(zip(numbers.ids.tolist(), numbers.values.tolist(), strict=True))
        errors = [
            abs(float(p @ numbers.values) - values[label])
            for p, label in zip(probabilities, labels, strict=True)
            if label in values
        ]
        assert stats.digits == len(errors) == sum(char.isdigit() for char in row["answer"])
        assert stats.digit_error_sum == pytest.approx(sum(errors), rel=1e-4)


def test_what_is_measured_of_answers_does_not_count_the_questions():
    """A loss on question and answer leaves the measures of the answer as they are."""
    model, using = tiny.model("gpt2", spread=0.7), tiny.encoding()
    data, settings = EncodedDataset(tiny.ROWS, using), EvalSettings(batch_size=3)
    given = [evaluation.answer(model, using, tiny.layout("gpt2", on), data, settings, 4) for on in ("answer", "all")]
    assert given[0].tokens == given[1].tokens


def test_no_digit_error_where_number_tokens_are_no_digits():
    rows = [{"question": "1", "answer": "5"}]
    given = evaluation.Answers(["5"], [False], [TokenStats(2, 2, 1.0)])
    scores = score(given, rows, kind="number", fill="5")
    assert scores.metrics["all"]["digit_error"] is None and "digit" in scores.notes["all"]["digit_error"]
    assert scores.metrics["all"]["nll"] == 0.5
    given.tokens = [TokenStats(2, 2, 1.0, 1, 2.5)]
    assert score(given, rows, kind="number", fill="5").metrics["all"]["digit_error"] == 2.5


@pytest.mark.parametrize("family", FAMILIES)
def test_token_accuracy_and_perplexity_are_those_of_the_librarys_own_loss(family):
    """transformers' loss of the whole split, computed row by row with its own handling of labels."""
    model = tiny.model(family, spread=0.7)
    scores = score(answer(model, family, batch_size=3), tiny.ROWS, kind="text", fill=None).metrics["all"]
    using = tiny.encoding()
    end = using.tokenizer.eos_token_id
    nll = correct = tokens = 0
    for row in tiny.ROWS:
        answered = [*using.encode(row["answer"])["input_ids"], end]
        if family == "t5":
            question = [*using.encode(row["question"])["input_ids"], end]
            output = model(input_ids=torch.tensor([question]), labels=torch.tensor([answered]))
            predicted = output.logits[0]
        else:
            question = using.encode(row["question"] + "\n")["input_ids"]
            labels = [*[IGNORE_INDEX] * len(question), *answered]
            output = model(input_ids=torch.tensor([[*question, *answered]]), labels=torch.tensor([labels]))
            predicted = output.logits[0, len(question) - 1 : -1]
        nll += output.loss.item() * len(answered)
        correct += int((predicted.argmax(-1) == torch.tensor(answered)).sum())
        tokens += len(answered)
    assert scores["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert scores["token_accuracy"] == correct / tokens


def test_token_accuracy_of_a_split_weighs_tokens_and_not_questions():
    rows = [{"question": "1", "answer": "5"}, {"question": "2", "answer": "777777"}]
    stats = [TokenStats(2, 2, 0.0), TokenStats(0, 7, 7 * math.log(2))]
    given = evaluation.Answers(["5", "1"], [False, True], stats)
    scores = score(given, rows, kind="number", fill="5").metrics["all"]
    assert scores["token_accuracy"] == pytest.approx(2 / 9)
    assert scores["perplexity"] == pytest.approx(2 ** (7 / 9))
    assert scores["cut"] == 0.5


class Says:
    """Make a model follow a script: at each step {token: probability}; afterwards the end token."""

    def __init__(self, model, steps):
        self.steps, self.step = steps, 0
        self.handle = model.get_output_embeddings().register_forward_hook(self)

    def __call__(self, module, inputs, output):
        said = self.steps[self.step] if self.step < len(self.steps) else {tiny.encoding().tokenizer.eos_token: 1.0}
        vocabulary = tiny.encoding().tokenizer.get_vocab()
        output = torch.full_like(output, -30.0)
        for token, probability in said.items():
            output[:, -1, vocabulary[token]] = math.log(probability)
        self.step += 1
        return output


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("decode", "text"), [("generate", "1"), ("expected", "5")])
def test_decoding_by_expected_value_picks_the_digit_between(family, decode, text):
    model = tiny.model(family)
    Says(model, [{"1": 0.5, "9": 0.45, "7": 0.05}])  # expected value 4.9
    given = answer(model, family, rows=tiny.ROWS[:1], decode=decode)
    assert given.texts == [text]
    assert given.truncated == [False]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("limit", "truncated"), [(4, False), (3, True)])
def test_an_answer_without_its_end_token_within_the_limit_counts_as_cut(family, limit, truncated):
    model = tiny.model(family)
    Says(model, [{"4": 1.0}, {"5": 1.0}, {"6": 1.0}])
    given = answer(model, family, rows=tiny.ROWS[:2], limit=limit)
    assert given.texts == ["456"] * 2
    assert given.truncated == [truncated] * 2


def test_beams_find_a_likelier_answer_than_the_greedy_one():
    """Greedy takes the likelier first token and then has to choose among many."""
    model = tiny.model("t5", spread=0.5)
    greedy, beam = (answer(model, "t5", beams=beams, limit=4) for beams in (1, 6))
    assert greedy.texts != beam.texts


def test_training_mode_is_restored():
    model = tiny.model("t5", dropout=0.5).train()
    first, second = (answer(model, "t5") for _ in range(2))
    assert model.training
    assert first.texts == second.texts and first.tokens == second.tokens  # no dropout while answering


def test_scores_are_given_for_each_module():
    rows = [row | {"module": "even" if index % 2 else "odd"} for index, row in enumerate(tiny.ROWS) if index != 2]
    rows = [row for row in rows if any(c.isdigit() for c in row["answer"])]
    model = tiny.model("t5", spread=0.7)
    scores = score(answer(model, "t5", rows=rows), rows, kind="number", fill="3")
    assert set(scores.metrics) == {"all", "even", "odd"}
    counts = {group: values["count"] for group, values in scores.metrics.items()}
    assert counts["all"] == len(rows) == counts["even"] + counts["odd"]


def test_a_constant_predictor_goes_the_same_way():
    rows = [{"question": "?", "answer": text} for text in ("1", "2", "2", "9")]
    scores = score(constant("2", rows), rows, kind="number", fill="2")
    assert scores.metrics["all"]["accuracy"] == 0.5
    assert scores.metrics["all"]["mae"] == 2.0
    assert scores.metrics["all"]["pearson"] is None and "constant" in scores.notes["all"]["pearson"]
    assert "token_accuracy" not in scores.metrics["all"] and "cut" not in scores.metrics["all"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beams": 0}, "eval.beams: got 0"),
        ({"decode": "sample"}, "expected generate or expected"),
        ({"decode": "expected", "beams": 2}, "set eval.beams=1"),
        ({"margin": -1}, "eval.margin: got -1"),
        ({"batch_size": 0}, "eval.batch_size: got 0"),
        ({"examples": 0}, "eval.examples: got 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        evaluation.check(EvalSettings(**wrong))


class TestLengths:
    """A decoder-only model has so many positions and no more: checked before anything is trained."""

    @staticmethod
    def check(family, rows, limit, positions=32):
        model = tiny.model(family, architecture={"n_positions": positions} if family == "gpt2" else {})
        data = {"train": tiny.dataset(tiny.ROWS[1:2]), "test": tiny.dataset(rows)}
        evaluation.check_lengths(model.config, tiny.layout(family), data, limit)

    def test_a_prompt_that_leaves_no_room_for_an_answer_names_its_split(self):
        with pytest.raises(ValueError) as error:
            self.check("gpt2", tiny.ROWS[3:4], limit=12)
        text = str(error.value)
        assert "test" in text and "32" in text and "n_positions" in text and len(text.splitlines()) == 1

    def test_a_reference_answer_longer_than_the_limit_counts_too(self):
        with pytest.raises(ValueError, match="'test'"):
            self.check("gpt2", [{"question": "1", "answer": "9" * 40}], limit=3)

    def test_what_fits_just_so_can_be_answered(self):
        rows, using = tiny.ROWS[:1], tiny.encoding()
        needed = len(using.encode(rows[0]["question"] + "\n")["input_ids"]) + 12
        self.check("gpt2", rows, limit=12, positions=needed)
        model = tiny.model("gpt2", spread=0.7, architecture={"n_positions": needed})
        Says(model, [{"4": 1.0}] * 20)
        assert answer(model, "gpt2", rows=rows, limit=12).truncated == [True]
        with pytest.raises(ValueError):
            self.check("gpt2", rows, limit=12, positions=needed - 1)

    def test_relative_positions_have_no_end(self):
        self.check("t5", [{"question": "1 " * 2000, "answer": "2"}], limit=12)


class TestLimit:
    """Reference answers that are longer than an answer may be: nothing that a model writes equals them."""

    TESTS = {"test": tiny.dataset([{"question": "1", "answer": answer} for answer in ("7", "9" * 13, "9" * 30)])}
    TRAIN = tiny.dataset([{"question": "1", "answer": "5"}])

    @pytest.mark.parametrize(
        ("limit_from", "limit", "beyond"), [("train", 12, 2), ("all", 41, 0)], ids=["of train", "of all splits"]
    )
    def test_references_beyond_the_limit_are_counted(self, limit_from, limit, beyond):
        settings = EvalSettings(limit_from=limit_from)
        assert evaluation.answer_limit(settings, self.TRAIN, self.TESTS) == limit
        assert self.TESTS["test"].answers_beyond(limit) == beyond
        notes = evaluation.truncation_notes(self.TESTS, limit)
        assert len(notes) == bool(beyond)
        if beyond:
            assert notes[0].startswith("test: 2 of 3 reference answers") and "(12)" in notes[0]

    def test_an_answer_at_the_limit_can_be_right(self):
        model = tiny.model("t5")
        Says(model, [{"9": 1.0}] * 20)
        rows = [{"question": "1", "answer": "9" * 13}]
        assert answer(model, "t5", rows=rows, limit=13).texts == ["9" * 13]
        assert self.TESTS["test"].answers_beyond(13) == 1
