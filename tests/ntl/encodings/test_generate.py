"""Generation with both kinds of model, and decoding by expected values."""

from functools import cache

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from ntl.encodings import TrainedBPE, build
from ntl.encodings.expected import ExpectedValueProcessor
from ntl.numbers import NumberVocabulary

QUESTIONS = ["What is 3 + 4?", "7", "Let x be 12.5 and y be 2024. Calculate x - y."]


@cache
def digits():
    encoding = build("digits", TrainedBPE(QUESTIONS * 2, vocab_size=280))
    encoding.resize(320)
    return encoding


def tiny(kind, seed=0, spread=1.0):
    """A random model with a padded output layer; the spread makes its answers depend on the prompt."""
    torch.manual_seed(seed)
    ids = {"pad_token_id": 0, "eos_token_id": 1, "vocab_size": 320}
    if kind == "t5":
        config = T5Config(
            **ids, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0, dropout_rate=0.5
        )
        model = T5ForConditionalGeneration(config)
    else:
        config = GPT2Config(**ids, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, embd_pdrop=0.5)
        model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return model.train()


def batch(kind, questions):
    """Pad prompts as the layouts do: right with an end token for T5, left with a line break for GPT-2."""
    encoding = digits()
    rows = [encoding.encode(q)["input_ids"] for q in questions]
    rows = [[*row, 1] if kind == "t5" else [*row, *encoding.encode("\n")["input_ids"]] for row in rows]
    width = max(map(len, rows))
    left = kind == "gpt2"
    fill = [[0] * (width - len(row)) for row in rows]
    ones = [[1] * len(row) for row in rows]
    join = [f + r if left else r + f for f, r in zip(fill, rows, strict=True)]
    mask = [f + r if left else r + f for f, r in zip(fill, ones, strict=True)]
    return {"input_ids": torch.tensor(join), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("decode", ["generate", "expected"])
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_batch_equals_one_by_one(kind, num_beams, decode):
    model, encoding = tiny(kind), digits()
    options = {"max_new_tokens": 8, "num_beams": num_beams, "decode": decode}
    together = encoding.generate(model, batch(kind, QUESTIONS), **options)
    single = [encoding.generate(model, batch(kind, [question]), **options)[0] for question in QUESTIONS]
    assert together == single
    assert len({answer.text for answer in together}) > 1  # the prompt matters
    assert all(answer.text == encoding.decode(answer.ids) and len(answer.ids) <= 8 for answer in together)
    assert model.training


class Script:
    """Make a model say what is wanted, one token a step in each row."""

    def __init__(self, model, said):
        self.said = said
        model.get_output_embeddings().register_forward_hook(self)
        self.step = 0

    def __call__(self, module, inputs, output):
        logits = torch.zeros_like(output)
        for row, said in enumerate(self.said):
            logits[row, -1, said[self.step] if self.step < len(said) else 5] = 50.0
        self.step += 1
        return logits


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_cut_answers_are_flagged_and_the_prompt_is_stripped(kind):
    encoding = digits()
    two, five = encoding.encode("2")["input_ids"], encoding.encode("5")["input_ids"]
    said = [[*two, 1], [*two, *five, *two, *five], [*two, *five, *two, 1]]
    model = tiny(kind)
    prompts = batch(kind, QUESTIONS)
    Script(model, said)
    answers = encoding.generate(model, prompts, max_new_tokens=4)
    assert [(a.text, a.truncated) for a in answers] == [("2", False), ("2525", True), ("252", False)]
    assert [a.ids for a in answers] == [two, said[1], said[2][:-1]]


def test_a_hub_models_own_generation_settings_are_set_aside():
    model, encoding = tiny("gpt2"), digits()
    plain = encoding.generate(model, batch("gpt2", QUESTIONS), max_new_tokens=6)
    model.generation_config.update(repetition_penalty=50.0, do_sample=True, suppress_tokens=plain[0].ids)
    own = model.generation_config
    assert encoding.generate(model, batch("gpt2", QUESTIONS), max_new_tokens=6) == plain
    assert model.generation_config is own and own.repetition_penalty == 50.0


def test_too_long_for_the_models_positions():
    with pytest.raises(ValueError, match=r"answers of up to 60, expected at most 64 together"):
        digits().generate(tiny("gpt2"), batch("gpt2", QUESTIONS), max_new_tokens=60)


def test_unknown_decoding():
    with pytest.raises(ValueError, match="got decode='expect', expected one of generate, expected"):
        digits().generate(tiny("t5"), batch("t5", QUESTIONS), max_new_tokens=2, decode="expect")


class TestExpectedValue:
    numbers = NumberVocabulary(ids=[2, 3, 4, 5], values=[0.0, 4.0, 5.0, 5.0], vocab_size=8)

    def scores(self, *pairs):
        row = torch.full((8,), -20.0)
        for token, probability in pairs:
            row[token] = torch.tensor(probability).log()
        return row

    def test_by_hand(self):
        scores = torch.stack(
            [
                self.scores((2, 0.4), (4, 0.35), (3, 0.05), (7, 0.2)),  # likeliest 0; E = 1.95/0.8 = 2.4: nearest 4
                self.scores((2, 0.2), (4, 0.2), (7, 0.6)),  # likeliest is no number
                self.scores((4, 0.3), (5, 0.5), (3, 0.2)),  # E = 4.8: of the twins worth 5 the likelier
                self.scores((2, 0.9), (4, 0.1)),  # E = 0.5: 0
            ]
        )
        kept = scores.clone()
        out = ExpectedValueProcessor(self.numbers)(None, scores)
        assert torch.equal(scores, kept)
        assert out.argmax(-1).tolist() == [3, 7, 5, 2]
        assert torch.equal(out[1], scores[1])
        # the mass of all numbers goes to the chosen one; what is no number keeps its own
        torch.testing.assert_close(out[0, 3].exp(), torch.tensor(0.8))
        torch.testing.assert_close(out.logsumexp(-1), scores.logsumexp(-1))
        assert torch.equal(out[:, [0, 1, 6, 7]], scores[:, [0, 1, 6, 7]])
        assert out[0, [2, 4, 5]].tolist() == [-torch.inf] * 3

    def test_wider_logits_and_half_precision(self):
        scores = torch.full((1, 64), -20.0, dtype=torch.bfloat16)
        scores[0, 2], scores[0, 4] = 1.0, 0.9
        out = ExpectedValueProcessor(self.numbers)(None, scores)
        assert out.dtype == torch.bfloat16 and out.argmax(-1).item() == 3

    def test_in_generation(self):
        encoding = digits()
        model = tiny("gpt2")
        ids = {digit: encoding.tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"}

        def between(module, inputs, output):
            logits = torch.full_like(output, -20.0)
            logits[..., ids["0"]], logits[..., ids["6"]] = 0.1, 0.0  # E = 2.85
            return logits

        model.get_output_embeddings().register_forward_hook(between)
        prompts = batch("gpt2", QUESTIONS[:1])
        texts = [
            encoding.generate(model, prompts, max_new_tokens=3, decode=d)[0].text for d in ("generate", "expected")
        ]
        assert texts == ["000", "333"]
