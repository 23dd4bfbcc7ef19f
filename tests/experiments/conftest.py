"""A sweep as it may be found: finished, partial, failed and missing arms of the ablation."""

import pytest
from made_records import FAILED, TRAINED, metrics, scores, write_record

from experiments.configuration import load_experiment, run_config
from experiments.records import collect, load


@pytest.fixture(scope="session")
def ablation():
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
    return collect(ablation, load(results))
