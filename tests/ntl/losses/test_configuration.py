"""Every yaml under conf/loss: complete, named as its file, and instantiable."""

from pathlib import Path

import pytest
import torch
from helpers import loss_reference as reference
from hydra.utils import get_class, instantiate

from experiments.config.compose import compose
from ntl.losses import Objective
from ntl.options import defaults

CONF = Path(__file__).parents[3] / "conf"
NAMES = {path.stem for path in (CONF / "loss").glob("*.yaml")}


def configuration(name, *overrides):
    return compose([f"loss={name}", *overrides])["loss"]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_files_are_complete(name):
    config = configuration(name)
    assert config.pop("name") == name
    encoding = config.pop("encoding")
    target = get_class(config["_target_"])
    assert encoding in target.encodings
    options = config.pop("encoding_options", {})
    if options or encoding not in Objective.encodings:
        its = get_class(options.pop("_target_"))
        assert its.name == encoding
        its.check(family="t5", answers="number", decode="generate", **options)  # takes all that is declared for it
    assert config.keys() - {"_target_"} == defaults(target.Options).keys()  # so that no override needs a `+`
    # `instantiate(config, numbers=…)` would turn the vocabulary, a dataclass, into a configuration
    objective = instantiate(config, _partial_=True)(reference.vocabulary())
    assert isinstance(objective, Objective)
    logits, labels = reference.batch()
    outputs = {"logits": logits, "values": logits.mean(-1)}
    result = objective(outputs, {"labels": labels, "labels_value": torch.zeros(labels.shape)})
    assert target.selection in {*result.parts, "loss"}
    assert set(result.parts) & set(target.number_parts) or set(result.parts) <= {"ce", "gce"}
    terms = objective.terms(outputs, {"labels": labels, "labels_value": torch.zeros(labels.shape)})
    torch.testing.assert_close(sum(terms.values()), result.total)
    assert result.total.requires_grad


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ce", {}),
        ("ntl_was", {"kind": "was", "weight": 0.3, "sigma": None}),
        ("ntl_mse", {"kind": "mse", "weight": 0.3}),
        ("ntl_mae", {"kind": "mae", "weight": 0.3}),
        ("ntl_huber", {"kind": "huber", "weight": 0.3}),
        ("gce", {"sigma": 1.0}),
        ("gce_ntl_was", {"kind": "was", "weight": 0.3, "sigma": 1.0}),
        ("dist2", {"weight": 0.1, "temperature": 1.0}),
        ("del", {"weight": 0.01}),
        ("rt", {"encoding": "rt"}),
        ("rt_ntl", {"encoding": "rt", "kind": "mse", "weight": 0.3}),
        ("xval", {"encoding": "xval", "weight": 0.5}),
        ("xval_mask", {"encoding": "xval_mask", "weight": 1.0}),
        ("xval_mask_signed", {"encoding": "xval_mask_signed", "weight": 1.0}),
        ("regression_head", {"encoding": "scalar"}),
    ],
)
def test_what_the_files_choose(name, expected):
    config = configuration(name)
    assert config["encoding"] == expected.get("encoding", "digits")
    assert {key: config[key] for key in expected} == expected
