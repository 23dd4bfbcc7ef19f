"""Every yaml under conf/loss: complete, named as its file, and instantiable."""

import inspect
from pathlib import Path

import loss_reference as reference
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from ntl.losses import Objective

CONF = Path(__file__).parents[3] / "conf"
OBJECTIVES = ["ce", "ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "gce", "gce_ntl_was"]


def configuration(name, *overrides):
    with initialize_config_dir(str(CONF), version_base=None):
        return OmegaConf.to_container(compose(f"loss/{name}", overrides=list(overrides)).loss)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_files_are_complete(name):
    config = configuration(name)
    assert config.pop("name") == name
    encoding = config.pop("encoding")
    target = get_class(config["_target_"])
    assert encoding in target.encodings
    parameters = set(inspect.signature(target).parameters) - {"numbers"}
    assert set(config) - {"_target_"} == parameters  # so that no override needs a `+`
    # `instantiate(config, numbers=…)` would turn the vocabulary, a dataclass, into a configuration
    objective = instantiate(config, _partial_=True)(reference.vocabulary())
    assert isinstance(objective, Objective)
    logits, labels = reference.batch()
    result = objective({"logits": logits}, {"labels": labels})
    assert target.selection in result.parts
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
    ],
)
def test_what_the_files_choose(name, expected):
    config = configuration(name)
    assert config["encoding"] == "digits"
    assert {key: config[key] for key in expected} == expected
