"""The identity of a run: equal for what gives equal results, different for what does not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ntl.options import option
from ntl.runs import identity
from ntl.runs.identity import canonical, public, run_id


@dataclass
class Data:
    name: str
    size: int = 100
    modules: tuple[str, ...] = ("add", "sub")
    options: dict[str, float] = field(default_factory=dict)
    folder: str | None = option(None, identity=False)


class Loss:
    @dataclass(frozen=True)
    class Options:
        kind: str = option("was")
        weight: float = option(0.3)


@dataclass
class Schedule:
    steps: int
    warmup: int = 10
    log_every: int = option(5, identity=False)


def config(**changes):
    """A small run; `changes` are dotted overrides with `__` for the dot, and None stands for removal."""
    whole = {
        "model": {"_target_": "ntl.settings.ModelSettings", "name": "t5_nano", "family": "t5"},
        "dataset": {"_target_": f"{__name__}.Data", "name": "arithmetic", "size": 50},
        "loss": {"_target_": f"{__name__}.Loss", "name": "ntl_was", "encoding": "digits", "weight": 0.8},
        "train": {"_target_": f"{__name__}.Schedule", "steps": 20},
        "eval": {"_target_": "ntl.settings.EvalSettings"},
        "seed": 0,
        "logger": {"_target_": "ntl.runs.tracking.NoTracker"},
        "paths": {"results": "/somewhere/results"},
    }
    for place, value in changes.items():
        *parents, last = place.split("__")
        node = whole
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return whole


def identity_of(**changes):
    return run_id(config(**changes), "data-hash")


SAME = {
    "a default of its Options": {"loss__kind": "was"},
    "a dataclass default": {"dataset__modules": ["add", "sub"]},
    "a factory's default": {"dataset__options": {}, "model__architecture": {}},
    "an integer written as a float": {"train__warmup": 10.0},
    "an integral float": {"dataset__size": 50.0},
    "another spelling of a number": {"loss__weight": float("0.80")},
    "a folder": {"dataset__folder": "/home/somebody/data", "model__path": "/models/t5"},
    "an implementation": {"eval__batch_size": 7},
    "an option outside the identity": {"train__log_every": 99},
    "the logger": {"logger": {"_target_": "ntl.runs.tracking.WandbTracker", "project": "x"}},
    "paths, arm, experiment, retry, force": {
        "paths__results": "/x",
        "arm": "ce",
        "experiment": "ablation",
        "retry": True,
        "force": True,
    },
}
DIFFERENT = {
    "seed": {"seed": 1},
    "size": {"dataset__size": 51},
    "order of modules": {"dataset__modules": ["sub", "add"]},
    "weight": {"loss__weight": 0.80001},
    "kind": {"loss__kind": "mse"},
    "encoding": {"loss__encoding": "subword"},
    "a flag is not a number": {"train__warmup": True, "loss__weight": True},
    "steps": {"train__steps": 21},
    "architecture": {"model__architecture": {"d_model": 64}},
    "a name inside options": {"model__architecture": {"name": "x"}},
    "a key that is not declared": {"loss__extra": 1},
    "beams": {"eval__beams": 7},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_cannot_change_a_result_does_not_rename_a_run(changes):
    assert identity_of(**changes) == identity_of()


@pytest.mark.parametrize("changes", DIFFERENT.values(), ids=DIFFERENT)
def test_what_can_change_a_result_renames_a_run(changes):
    assert identity_of(**changes) != identity_of()


def test_all_different_runs_differ_from_one_another():
    names = {identity_of(**changes) for changes in DIFFERENT.values()}
    assert len(names) == len(DIFFERENT)


def test_fingerprints_are_part_of_the_identity():
    names = {run_id(config(), data, weights) for data in ("a", "b") for weights in (None, "a", "b")}
    assert len(names) == 6


def test_version_is_part_of_the_identity(monkeypatch):
    before = identity_of()
    monkeypatch.setattr(identity, "ALGORITHM_VERSION", identity.ALGORITHM_VERSION + 1)
    assert identity_of() != before


def test_the_id_is_readable():
    name = identity_of()
    assert name.startswith("arithmetic-t5_nano-ntl_was-s0-")
    assert len(name.rpartition("-")[2]) == 8
    assert int(name.rpartition("-")[2], 16) >= 0


def test_the_readable_part_alone_does_not_carry_the_identity():
    renamed = identity_of(model__name="other")
    assert renamed.rpartition("-")[2] == identity_of().rpartition("-")[2]
    assert "-other-" in renamed


def test_canonical_form_is_frozen():
    """Whoever changes this expectation renames every recorded run: raise CANONICAL_VERSION."""
    form = canonical(config(loss__weight=0.30, loss__kind="mse", dataset__options={"b": 1.0, "a": 0.5}))
    assert form == {
        "version": 2,
        "algorithm_version": identity.ALGORITHM_VERSION,
        "config": {
            "model": {"class": "ModelSettings", "family": "t5"},
            "dataset": {"class": "Data", "size": 50, "options": {"a": 0.5, "b": 1}},
            "loss": {"class": "Loss", "encoding": "digits", "kind": "mse"},
            "train": {"class": "Schedule", "steps": 20},
            "eval": {"class": "EvalSettings"},
            "seed": 0,
        },
    }


def test_identity_does_not_depend_on_the_order_of_keys():
    whole = config(model__architecture={"a": 1, "b": 2})
    turned = {key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in whole.items()}
    assert run_id(dict(reversed(turned.items())), "d") == run_id(whole, "d")


def test_configurations_of_omegaconf_work_as_they_are():
    omegaconf = pytest.importorskip("omegaconf")
    whole = config(dataset__modules=["add"], loss__weight="${seed}")
    plain = config(dataset__modules=("add",), loss__weight=0)
    assert run_id(omegaconf.OmegaConf.create(whole), "d") == run_id(plain, "d")


def test_the_configuration_is_left_as_it_was():
    whole = config()
    before = copy.deepcopy(whole)
    run_id(whole, "d"), public(whole)
    assert whole == before


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["weight", "kind", "encoding", "other"]), values))
def test_canonical_is_json_and_stable(options):
    whole = config()
    whole["loss"] |= options
    form = canonical(whole)
    assert json.loads(json.dumps(form, allow_nan=False)) == form


def test_public_keeps_what_counts_and_no_path():
    whole = config(
        dataset__folder="/home/somebody/data", loss__kind="was", loss__weight=1.0, model__revision="/srv/models/t5/main"
    )
    shown = public(whole)
    assert shown["loss"] == {k: whole["loss"][k] for k in ("_target_", "name", "encoding", "kind", "weight")}
    assert isinstance(shown["loss"]["weight"], float)
    assert set(shown) == {"model", "dataset", "loss", "train", "eval", "seed"}
    text = json.dumps(shown)
    assert "somebody" not in text
    assert "/srv" not in text


def test_a_record_selects_the_same_run_as_its_configuration():
    whole = config(dataset__folder="/x/y", loss__fused=True, train__warmup=10)
    assert canonical(public(whole)) == canonical(whole)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match=r"loss\.weight.*finite"):
        canonical(config(loss__weight=value))


def test_values_that_json_cannot_hold_are_refused():
    with pytest.raises(TypeError, match=r"loss\.weight"):
        canonical(config(loss__weight=object()))


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", None, "a b", "-rf", "a-b", ".."])
def test_names_cannot_leave_their_folder(name):
    with pytest.raises(ValueError, match=r"dataset\.name"):
        identity_of(dataset__name=name)


@pytest.mark.parametrize("seed", [None, "0", 1.5, True, -1])
def test_seed_must_be_an_integer(seed):
    with pytest.raises(ValueError, match="seed"):
        identity_of(seed=seed)


def test_a_target_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"ntl\.losses\.Nothing"):
        canonical(config(loss___target_="ntl.losses.Nothing"))


def test_naming_a_run_does_not_load_torch():
    code = (
        "import sys, ntl.runs.run as r; c = {'_target_': 'ntl.settings.TrainSettings'};"
        "n = {k: {'name': k} for k in ('dataset', 'model', 'loss')};"
        "r.run_id({**n, 'train': c, 'seed': 0}, 'x'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
