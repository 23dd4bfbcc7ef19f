"""A sweep as it may be found: finished, partial, failed and missing arms of the ablation."""

import re
import shutil

import pytest
from helpers.made_records import FAILED, TRAINED, metrics, scores, write_record

from experiments.analysis.records import arm_runs, load
from experiments.config import compose as configuration
from experiments.config.compose import load_experiment, run_config


@pytest.fixture(scope="session", autouse=True)
def five_seeds(tmp_path_factory):
    """The configuration as it is, but for the ablation's seeds: these tests must not depend on how many are run."""
    conf = tmp_path_factory.mktemp("conf") / "conf"
    shutil.copytree(configuration.CONF, conf)
    yaml = conf / "experiment" / "ablation.yaml"
    yaml.write_text(re.sub(r"(?m)^(arm_)?seeds:.*(\n(?=[ -]).*)*", "", yaml.read_text()) + "seeds: [0, 1, 2, 3, 4]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "CONF", conf)
        patch.setattr(configuration, "COMPOSED", conf.parent / "composed")
        yield


@pytest.fixture(scope="session")
def ablation(five_seeds):
    return load_experiment("ablation")


@pytest.fixture
def results(tmp_path, ablation):
    folder = tmp_path / "results"
    for arm, by_seed in TRAINED.items():
        for seed, (accuracy, log_mae) in enumerate(by_seed):
            trained = metrics(accuracy, log_mae), metrics(accuracy / 4, log_mae * 2)
            write_record(folder, run_config(ablation, arm, seed), scores(*trained))
    write_record(folder, run_config(ablation, "ntl_mae@0.3", 3), failed=FAILED)
    return folder


@pytest.fixture
def arms(results, ablation):
    return arm_runs(ablation, load(results))


@pytest.fixture
def small_benchmark(monkeypatch):
    """Settings of a benchmark that takes a second, on a tiny vocabulary."""
    from experiments.benchmark import costs
    from experiments.benchmark.settings import BenchmarkSettings

    monkeypatch.setattr(costs, "VOCABULARIES", (costs.Vocabulary("tiny", 500, 16, 64, 64),))
    monkeypatch.setattr(costs, "GROWTH", (16, 32))
    return BenchmarkSettings(parts=("loss", "head", "growth"), rounds=4)
