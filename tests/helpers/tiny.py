"""The smallest things that can be trained: a tokenizer, questions, and models of a few thousand weights."""

from functools import cache

import torch

from ntl.data import EncodedDataset, layout_for
from ntl.encodings import TrainedBPE, build
from ntl.models import build as build_model
from ntl.settings import ModelSettings

# Answers of unlike length, one without a number.
ROWS = [
    {"question": "What is 3 + 4?", "answer": "7"},
    {"question": "7", "answer": "-12.5"},
    {"question": "Is it?", "answer": "no"},
    {"question": "Let x be 12.5 and y be 2024. Calculate x - y.", "answer": "-2011.5"},
    {"question": "What is 90 + 9?", "answer": "99"},
    {"question": "Add 1 and 2.", "answer": "3"},
    {"question": "1000 times 1000", "answer": "1000000"},
    {"question": "Which letter?", "answer": "the letter w"},
]
ARCHITECTURE = {
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128},
}


@cache
def encoding(name="digits"):
    texts = [row[part] for row in ROWS for part in ("question", "answer")]
    return build(name, TrainedBPE(texts * 2, vocab_size=300))


def settings(family, dropout=0.0, **options):
    """Model settings of a tiny model; `architecture` adds to its size."""
    rates = ("dropout_rate",) if family == "t5" else ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    size = ARCHITECTURE[family] | dict.fromkeys(rates, dropout) | options.pop("architecture", {})
    return ModelSettings(name="tiny", family=family, architecture=size, **options)


def model(family, seed=0, spread=None, using=None, **options):
    """A tiny model from scratch; a large `spread` of all weights makes its answers depend on the question."""
    made = build_model(settings(family, **options), using or encoding(), seed)
    if spread is not None:
        torch.manual_seed(seed)
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=spread)
    return made.eval()


def layout(family, loss_on="answer", using=None):
    return layout_for(family == "t5", using or encoding(), loss_on)


def dataset(rows=ROWS, using=None):
    return EncodedDataset(rows, using or encoding())
