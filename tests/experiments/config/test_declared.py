"""Options are declared once: yaml files state what differs, and a configuration shows every option."""

import shutil
import sys

import pytest
from omegaconf import OmegaConf

import ntl.losses
from experiments.config import compose as configuration
from experiments.config.compose import CONF, DECLARED, choices, compose
from ntl.options import declaration, declared_by, defaults

CHOICES = [(group, choice) for group in DECLARED for choice in choices(group)]


def stated(node, prefix=""):
    """The values that a yaml file states, by dotted key."""
    found = {}
    for key, value in node.items():
        if isinstance(value, dict) and value:
            found |= stated(value, f"{prefix}{key}.")
        elif key not in ("name", "_target_", "encoding", "defaults"):
            found[f"{prefix}{key}"] = value
    return found


def value_at(node, key):
    for name in key.split("."):
        node = node.get(name, {})
    return node


def read(path):
    return OmegaConf.to_container(OmegaConf.load(path))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_yaml_file_states_only_what_differs_from_the_declared_defaults(group, choice):
    file = read(CONF / group / f"{choice}.yaml")
    for node, key in ((file, group), (file.get("encoding_options", {}), "loss.encoding_options")):
        declared = defaults(declaration(node["_target_"])) if "_target_" in node else {}
        own = {name: item for name, item in node.items() if name != "encoding_options"}
        for name, value in stated(own).items():
            assert value_at(declared, name) != value, f"{key}.{name}={value} is the default"


@pytest.mark.parametrize("choice", choices("scale"))
def test_a_scale_states_only_what_differs_from_the_choices_that_it_makes(choice):
    file = read(CONF / "scale" / f"{choice}.yaml")
    made = [
        f"{key.partition('/')[2]}={value}"
        for item in file.pop("defaults")
        if isinstance(item, dict)
        for key, value in item.items()
    ]
    without = compose(made)
    for key, value in stated(file).items():
        assert value_at(without, key) != value, f"{key}={value} is so already by {' '.join(made)}"


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_configuration_shows_every_option(group, choice):
    needed = ["model.hub=some/model"] if choice == "custom" and group == "model" else []
    node = compose([f"{group}={choice}", *needed])[group]
    for part in (node, node.get("encoding_options", {})):
        if part:
            assert declared_by(part["_target_"]).keys() <= part.keys()
            for name, option in declared_by(part["_target_"]).items():
                assert option.meaning, f"{group}.{name} has no meaning"
                assert option.accepts(part[name])


def test_a_default_is_declared_and_nowhere_else(monkeypatch, tmp_path):
    """A loss in one Python file and one yaml, neither of which repeats an option."""
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    (conf / "loss" / "mine.yaml").write_text("name: mine\n_target_: ntl.losses.a_loss.Mine\nencoding: digits\n")
    (tmp_path / "a_loss.py").write_text(
        "from dataclasses import dataclass\n"
        "from ntl.losses import CrossEntropy\n"
        "from ntl.options import option\n"
        "class Mine(CrossEntropy):\n"
        "    @dataclass(frozen=True, kw_only=True)\n"
        "    class Options(CrossEntropy.Options):\n"
        "        beta: float = option(0.25, 'of something', at_least=0)\n"
    )
    monkeypatch.setattr(ntl.losses, "__path__", [*ntl.losses.__path__, str(tmp_path)])
    monkeypatch.setattr(configuration, "CONF", conf)
    monkeypatch.setattr(configuration, "choices", configuration.choices.__wrapped__)
    assert compose(["loss=mine"])["loss"]["beta"] == 0.25
    assert compose(["loss=mine", "loss.beta=1"])["loss"]["beta"] == 1
    with pytest.raises(configuration.ConfigurationError, match=r"loss\.beta: got -1, expected a finite number"):
        compose(["loss=mine", "loss.beta=-1"])
    with pytest.raises(configuration.ConfigurationError, match=r"'loss\.bta' of loss=mine; nearest: loss\.beta"):
        compose(["loss=mine", "loss.bta=1"])
    sys.modules.pop("ntl.losses.a_loss")
