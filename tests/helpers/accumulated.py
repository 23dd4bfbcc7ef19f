"""One optimizer step of anyone's Trainer over four rows of which one has numbers, in float64.

As a program (`python accumulated.py <family> <file>`, under torchrun) it saves the weights after the step.
"""

import sys
from pathlib import Path

import torch
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ntl.integrations.transformers import ObjectiveMixin
from ntl.losses import CrossEntropyWithNTL
from ntl.losses.functional import cross_entropy_with_ntl
from ntl.losses.objectives import shifted
from ntl.numbers import NumberVocabulary

WIDTH = 32
NUMBERS = NumberVocabulary(ids=torch.arange(6, 16), values=torch.arange(10.0), vocab_size=WIDTH)
# Rows of unlike length; the numbers 7, 2 and 9 are in the first alone.
ROWS = [
    {"input_ids": [3, 4, 5, 13, 8, 15, 1], "labels": [-100, -100, 5, 13, 8, 15, 1]},
    {"input_ids": [3, 4, 2, 1], "labels": [-100, -100, 2, 1]},
    {"input_ids": [4, 4, 5, 20, 21, 22, 23, 1], "labels": [-100, -100, 5, 20, 21, 22, 23, 1]},
    {"input_ids": [17, 18, 19], "labels": [-100, 18, 19]},
]
WHOLE = {"input_ids": [17, 18, 19], "labels": [17, 18, 19]}  # a causal model predicts its first label from nothing


def tokenizer():
    from tokenizers import Tokenizer, models

    words = {f"w{i}": i for i in range(WIDTH)}
    names = {"pad_token": "w0", "eos_token": "w1", "unk_token": "w2"}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w2")), **names)


def model(family):
    torch.manual_seed(0)
    if family == "t5":
        size = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        return T5ForConditionalGeneration(T5Config(vocab_size=WIDTH, **size, **ids)).double()
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WIDTH, **size, **rates)).double()


def library(kind):
    """The trainer and its arguments."""
    if kind == "sft":
        import trl

        return trl.SFTTrainer, trl.SFTConfig
    return {"t5": (Seq2SeqTrainer, Seq2SeqTrainingArguments), "gpt2": (Trainer, TrainingArguments)}[kind]


def rows(kind, exact):
    made = [dict(row) for row in (*ROWS[:-1], WHOLE if exact else ROWS[-1])]
    if kind == "sft":
        from datasets import Dataset

        return Dataset.from_list(made)
    return made


def trainer(kind, folder, exact, batch_size=1, accumulate=4, **options):
    """A Trainer that makes one step of gradient descent at rate 1 over all rows.

    With `exact` it has the mixin, and one row is trained on as a whole: of GPT-2's labels, Trainer counts one too many.
    """
    base, arguments_class = library(kind)
    made = model(kind)
    arguments = arguments_class(
        str(folder),
        max_steps=1,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **({"bf16": False, "dataset_kwargs": {"skip_prepare_dataset": True}} if kind == "sft" else {}),
    )
    loss = CrossEntropyWithNTL(NUMBERS, weight=1.0)
    cls = type("NTLTrainer", (ObjectiveMixin, base), {}) if exact else base
    return cls(
        made,
        arguments,
        train_dataset=rows(kind, exact),
        eval_dataset=rows(kind, exact),
        data_collator=DataCollatorForSeq2Seq(tokenizer()),
        optimizers=(torch.optim.SGD(made.parameters(), lr=1.0), None),
        **({"processing_class": tokenizer()} if kind == "sft" else {}),
        **({"objective": loss} if exact else {"compute_loss_func": loss}),
        **options,
    )


def expected(kind, weight=1.0, exact=True):
    """Loss of one batch of all rows, and the weights after the same step, by autograd alone."""
    made = model(kind)
    batch = dict(DataCollatorForSeq2Seq(tokenizer())(list(rows(kind, exact))))
    labels = batch.pop("labels")
    if kind == "t5":
        batch["decoder_input_ids"] = made.prepare_decoder_input_ids_from_labels(labels=labels)
    aligned = labels if kind == "t5" else shifted(labels)
    loss = cross_entropy_with_ntl(made(**batch).logits, aligned, NUMBERS, weight=weight, implementation="plain")
    loss.backward()
    return loss.item(), {name: (p - p.grad).detach() for name, p in made.named_parameters()}


if __name__ == "__main__":
    made = trainer(sys.argv[1], Path(sys.argv[2]).parent, exact=True, batch_size=1, accumulate=2)
    made.train()
    evaluated = made.evaluate()["eval_loss"]
    if made.accelerator.is_main_process:
        weights = {name: p.detach() for name, p in made.model.named_parameters()}
        torch.save({"weights": weights, "loss": made.state.log_history[0]["loss"], "eval": evaluated}, sys.argv[2])
