"""Fingerprints of initial weights: equal where two models start out the same."""

import pytest
import torch
from helpers import tiny

from ntl.models import lora
from ntl.models.initialisation import fingerprints
from ntl.settings import LoraSettings

EMBEDDINGS = ("shared.weight", "wte.weight")


def is_block(name):
    return any(part.isdigit() for part in name.split("."))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_arms_of_a_seed_share_blocks_and_those_of_an_encoding_all_weights(family):
    found, again, other_seed, subword = (
        fingerprints(tiny.model(family, seed, using=tiny.encoding(name)))
        for seed, name in ((3, "digits"), (3, "digits"), (4, "digits"), (3, "subword"))
    )
    assert found == again and list(map(is_block, found)).count(True) >= 1
    assert not {name for name in found if is_block(name) and found[name] == other_seed[name]}
    assert {name for name in found if found[name] != subword[name]} == {name for name in found if name in EMBEDDINGS}


def test_one_changed_weight_is_noticed_in_its_block_alone():
    model = tiny.model("gpt2")
    before = fingerprints(model)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.bias[0] += 1e-6
    assert [name for name, value in fingerprints(model).items() if value != before[name]] == ["h.0"]


def test_a_body_with_another_head_has_the_same_names_and_fingerprints():
    plain, head = (fingerprints(tiny.model("t5", using=tiny.encoding(name))) for name in ("subword", "scalar"))
    shared = {name for name in plain if is_block(name)}
    assert shared and {name: plain[name] for name in shared} == {name: head.get(name) for name in shared}


def test_of_a_model_with_adapters_only_what_is_trained_counts():
    options = LoraSettings(r=2, targets=["c_attn"])
    first, second = (fingerprints(lora.add(tiny.model("gpt2"), options, seed)) for seed in (0, 1))
    assert list(first) == ["h.0"] and first != second
