"""`compute_loss_func=` of transformers' Trainer: nothing but the loss is ours."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers import loss_reference as reference
from transformers import (
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import CausalLMOutput, Seq2SeqLMOutput

from ntl.losses import CrossEntropyWithNTL
from ntl.losses.functional import cross_entropy_with_ntl
from ntl.numbers import NumberVocabulary

WORDS = ["<pad>", "</s>", "<unk>", "+", "=", ".", *"0123456789"]
COMMON = {
    "max_steps": 30,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "learning_rate": 1e-2,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
    "logging_steps": 1,
    "lr_scheduler_type": "constant",
}
NUMBERS = NumberVocabulary(ids=torch.arange(6, 16), values=torch.arange(10.0), vocab_size=len(WORDS), dot_ids=(5,))


def digits_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="right"
    )


def sums():
    return [(f"{a}+{b}=", str(a + b)) for a in range(4, 12) for b in range(4, 8)]


def train_t5(tmp_path, loss, **options):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32,  # wider than the tokenizer
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    tokenizer = digits_tokenizer()
    data = [
        {"input_ids": tokenizer(question)["input_ids"], "labels": [*tokenizer(answer)["input_ids"], 1]}
        for question, answer in sums()
    ]
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(tmp_path, **COMMON | options),
        train_dataset=data,
        eval_dataset=data[:8],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_loss_func=loss,
    )
    return trainer, trainer.train()


def train_gpt2(tmp_path, loss, **options):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    tokenizer = digits_tokenizer()
    data = []
    for question, answer in sums():
        prompt, target = tokenizer(question)["input_ids"], [*tokenizer(answer)["input_ids"], 1]
        data.append({"input_ids": prompt + target, "labels": [-100] * len(prompt) + target})
    trainer = Trainer(
        GPT2LMHeadModel(config),
        TrainingArguments(tmp_path, **COMMON | options),
        train_dataset=data,
        eval_dataset=data[:8],
        data_collator=DataCollatorForSeq2Seq(tokenizer),  # pads the labels too
        compute_loss_func=loss,
    )
    return trainer, trainer.train()


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("train", [train_t5, train_gpt2])
@pytest.mark.parametrize("options", [{}, {"kind": "mse", "weight": 0.1}, {"sigma": 1.0, "place_value": 2.0}], ids=str)
def test_trains(tmp_path, train, options):
    trainer, _ = train(tmp_path, CrossEntropyWithNTL(NUMBERS, **options))
    curve = losses(trainer)
    assert len(curve) == 30
    assert sum(curve[-5:]) < 0.8 * sum(curve[:5])
    # what Trainer reports of one batch is the function's value on aligned labels
    batch = trainer.data_collator([dict(row) for row in trainer.eval_dataset])
    labels = batch["labels"] if train is train_t5 else shifted(batch["labels"])
    with torch.no_grad():
        logits = trainer.model.eval()(**batch).logits
    expected = cross_entropy_with_ntl(logits, labels, NUMBERS, **options)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("train", [train_t5, train_gpt2])
def test_weight_zero_trains_like_the_models_own_loss(tmp_path, train):
    ours, _ = train(tmp_path, CrossEntropyWithNTL(NUMBERS, weight=0.0))
    own, _ = train(tmp_path, None)
    assert losses(ours) == pytest.approx(losses(own), rel=1e-4)


@pytest.mark.parametrize("train", [train_t5, train_gpt2])
def test_accumulation(tmp_path, train):
    """Answers have nearly one length here, so micro-batches make up the large batch to a few percent."""
    whole, _ = train(tmp_path, CrossEntropyWithNTL(NUMBERS), max_steps=3)
    split, _ = train(
        tmp_path,
        CrossEntropyWithNTL(NUMBERS),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    assert losses(split) == pytest.approx(losses(whole), rel=0.03)


def shifted(labels):
    return torch.cat([labels[:, 1:], torch.full((len(labels), 1), -100)], 1)


def test_labels_are_shifted_for_causal_models_alone():
    logits, labels = reference.batch(seed=1)
    numbers = reference.vocabulary()
    loss = CrossEntropyWithNTL(numbers)
    aligned = cross_entropy_with_ntl(logits, labels, numbers)
    moved = cross_entropy_with_ntl(logits, shifted(labels), numbers)
    assert not torch.isclose(aligned, moved)
    causal = CausalLMOutput(logits=logits)
    seq2seq = Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=torch.zeros(1))
    assert loss(causal, labels) == moved
    assert loss(seq2seq, labels) == aligned
    assert loss(dict(causal), labels) == moved
    assert partial(loss, shift_labels=False)(causal, labels, num_items_in_batch=None) == aligned
    assert partial(loss, shift_labels=True)(seq2seq, labels) == moved
    # the same as torch's own loss on cut tensors
    ce = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(CrossEntropyWithNTL(numbers, weight=0.0)(causal, labels), ce)


def test_number_of_items():
    """The items of one batch change nothing; those of a larger one scale the loss by the share of the labels."""
    logits, labels = reference.batch(seed=2)
    loss = CrossEntropyWithNTL(reference.vocabulary())
    outputs = Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=torch.zeros(1))
    plain = loss(outputs, labels)
    items = (labels != -100).sum()
    assert loss(outputs, labels, num_items_in_batch=items) == plain
    torch.testing.assert_close(loss(outputs, labels, num_items_in_batch=int(4 * items)), plain / 4)
    nothing = loss(outputs, torch.full_like(labels, -100), num_items_in_batch=items)
    assert nothing == 0
    assert nothing.requires_grad
