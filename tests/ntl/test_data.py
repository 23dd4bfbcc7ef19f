"""Labels stand under the logits that predict them: held against the library's own losses."""

import pytest
import torch
from helpers import tiny

from ntl.data import EncodedDataset, layout_for, model_inputs
from ntl.encodings import Encoding
from ntl.losses.objectives import CrossEntropy
from ntl.numbers import IGNORE_INDEX
from ntl.settings import EvalSettings

FAMILIES = ("t5", "gpt2")
PAD, END = 0, 1


def our_loss(model, batch):
    return CrossEntropy(tiny.encoding().numbers.resized(model.config.vocab_size))(
        model(**model_inputs(batch)), batch
    ).total


def padded(rows, value):
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def tokens(text):
    return tiny.encoding().encode(text)["input_ids"]


def test_an_encoder_decoder_batch_has_the_librarys_own_loss():
    model, items = tiny.model("t5", spread=0.2), list(tiny.dataset())
    questions = [[*tokens(row["question"]), END] for row in tiny.ROWS]
    answers = [[*tokens(row["answer"]), END] for row in tiny.ROWS]
    theirs = model(
        input_ids=padded(questions, PAD),
        attention_mask=padded([[1] * len(q) for q in questions], 0),
        labels=padded(answers, IGNORE_INDEX),
    ).loss
    torch.testing.assert_close(our_loss(model, tiny.layout("t5").train_batch(items)), theirs)


@pytest.mark.parametrize("loss_on", ["answer", "all"])
def test_a_decoder_only_batch_has_the_librarys_own_loss(loss_on):
    model, items = tiny.model("gpt2", spread=0.2), list(tiny.dataset())
    prompts = [tokens(row["question"]) + tokens("\n") for row in tiny.ROWS]
    whole = [[*p, *tokens(row["answer"]), END] for p, row in zip(prompts, tiny.ROWS, strict=True)]
    unseen = [0 if loss_on == "all" else len(p) for p in prompts]
    labels = [[IGNORE_INDEX] * n + w[n:] for n, w in zip(unseen, whole, strict=True)]
    theirs = model(
        input_ids=padded(whole, PAD),
        attention_mask=padded([[1] * len(w) for w in whole], 0),
        labels=padded(labels, IGNORE_INDEX),
    ).loss
    batch = tiny.layout("gpt2", loss_on).train_batch(items)
    torch.testing.assert_close(our_loss(model, batch), theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_token_and_its_end_is_a_label_once_and_no_padding_is(family):
    batch = tiny.layout(family).train_batch(list(tiny.dataset()))
    for row, labels in zip(tiny.ROWS, batch["labels"], strict=True):
        assert labels[labels != IGNORE_INDEX].tolist() == [*tokens(row["answer"]), END]


def test_loss_on_all_counts_the_question_too():
    batch = tiny.layout("gpt2", "all").train_batch(list(tiny.dataset()))
    for row, labels in zip(tiny.ROWS, batch["labels"], strict=True):
        expected = tokens(row["question"])[1:] + tokens("\n") + [*tokens(row["answer"]), END]
        assert labels[labels != IGNORE_INDEX].tolist() == expected


def test_labels_are_told_from_padding_by_length_where_both_have_one_id():
    """GPT-2's tokenizer pads with its end token: that end must stay a label."""
    using = tiny.build("digits", tiny.TrainedBPE(["1 2"], vocab_size=260))
    using.tokenizer.pad_token = using.tokenizer.eos_token
    items = list(EncodedDataset([{"question": "1", "answer": "2"}, {"question": "12", "answer": "345"}], using))
    batch = layout_for(False, using).train_batch(items)
    assert (batch["labels"] == END).sum(1).tolist() == [1, 1]
    assert batch["attention_mask"].sum(1).tolist() == [3, 6]


def test_prompts_are_padded_on_the_side_that_generation_goes_on_from():
    questions = [question for question, _ in tiny.dataset()]
    right, left = (tiny.layout(family).prompt_batch(questions) for family in FAMILIES)
    for index, row in enumerate(tiny.ROWS):
        seen = right["input_ids"][index][right["attention_mask"][index].bool()]
        assert seen.tolist() == [*tokens(row["question"]), END]
        assert right["attention_mask"][index][0] == 1
        seen = left["input_ids"][index][left["attention_mask"][index].bool()]
        assert seen.tolist() == tokens(row["question"]) + tokens("\n")
        assert left["attention_mask"][index][-1] == 1


class WithValues(Encoding):
    """An encoding that gives a second value per token (its position, counted from 1; 0.5 fills up) and a target."""

    pad_values = {"input_ids": PAD, "values": 0.5}
    target_pads = {"goal": -1.5}

    def __init__(self):
        self.tokenizer = tiny.encoding().tokenizer

    def encode(self, text):
        ids = tokens(text)
        values = [float(n) for n in range(1, len(ids) + 1)]
        return {"input_ids": ids, "values": values, "goal": [10 * value for value in values]}


@pytest.mark.parametrize("loss_on", ["answer", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_further_values_travel_with_their_tokens(family, loss_on):
    using = WithValues()
    items = list(EncodedDataset(tiny.ROWS, using))
    batch = layout_for(family == "t5", using, loss_on).train_batch(items)
    prompt = layout_for(family == "t5", using, loss_on).prompt_batch([question for question, _ in items])

    def pairs(ids, values):
        assert ids.shape == values.shape
        return [list(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]

    def of(encoded):
        return list(zip(encoded["input_ids"], encoded["values"], strict=True))

    for index, (question, answer) in enumerate(items):
        given = pairs(prompt["input_ids"], prompt["values"])[index]
        assert all(pair in given for pair in of(question))
        labelled = pairs(batch["labels"], batch["labels_values"])[index]
        kept = [pair for pair in labelled if pair[0] != IGNORE_INDEX]
        assert kept[-len(of(answer)) - 1 :] == [*of(answer), (END, 0.5)]
        assert all(value == 0.5 for label, value in labelled if label == IGNORE_INDEX)
        side = "decoder_" if family == "t5" else ""
        seen = pairs(batch[f"{side}input_ids"], batch[f"{side}values"])[index]
        assert all(pair in seen for pair in of(answer))
        goals = batch["labels_goal"][index][labelled_mask(batch)[index]].tolist()
        assert goals[-len(of(answer)) - 1 :] == [*(10 * value for _, value in of(answer)), -1.5]
        assert (batch["labels_goal"][index][~labelled_mask(batch)[index]] == -1.5).all()
    assert set(model_inputs(batch)) == {key for key in batch if not key.startswith("labels")}
    # a target is nowhere but beside the labels
    assert [key for key in (*batch, *prompt) if "goal" in key] == ["labels_goal"]


def labelled_mask(batch):
    return batch["labels"] != IGNORE_INDEX


def test_the_longest_answer_counts_its_end_token():
    assert tiny.dataset().longest_answer() == 1 + max(len(tokens(row["answer"])) for row in tiny.ROWS)


@pytest.mark.parametrize(("family", "loss_on"), [("t5", "answer"), ("gpt2", "answer"), ("gpt2", "all")])
def test_what_is_trained_is_what_is_asked(family, loss_on):
    """A model that has learnt its questions by heart answers them when it is prompted, in one batch."""
    from ntl.evaluation.answer import answer

    using, data = tiny.encoding(), tiny.dataset()
    model, layout = tiny.model(family), tiny.layout(family, loss_on)
    objective = CrossEntropy(using.numbers.resized(model.config.vocab_size))
    batch = layout.train_batch(list(data))
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=5e-3)
    for _ in range(600):
        loss = objective(model(**model_inputs(batch)), batch).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < (0.005 if loss_on == "answer" else 0.3):  # the questions themselves cannot be foretold
            break
    else:
        raise AssertionError(f"not learnt: the loss is {loss.item():.3f}")
    given = answer(model, using, layout, data, EvalSettings(beams=1), data.longest_answer() + 5)
    assert given.texts == [row["answer"] for row in tiny.ROWS]
    assert given.truncated == [False] * len(data)
