"""Which modules are experiments."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.config.discovery import module_name, shown

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
from experiments.analysis.table import Table

TABLES = (Table("A table of {name}", ("test",), ("accuracy",), "ce"),)
"""
YAML = """# @package _global_
experiment: {name}
arms: {{ce: [], ntl_was: [loss=ntl_was]}}
seeds: [0]
"""


def test_an_experiment_is_a_yaml_with_a_module_of_its_name():
    assert {"ablation", "quickstart", "runtime", "landscape"} <= set(shown())
    assert module_name("gpu/ablation") == module_name("paper/ablation") == module_name("ablation")
    assert module_name("pretrained/rjokes") == module_name("rjokes")
    assert module_name("calibration/rjokes") == "experiments.calibration.rjokes"
    assert module_name("calibration/ablation") is None
    assert module_name("nothing") is None


@pytest.mark.parametrize(
    "name", ["__main__", "__init__", "config/check", "analysis/metrics", "benchmark/costs", "gpu/calibration/rjokes"]
)
def test_infrastructure_is_no_experiment(name):
    assert module_name(name) is None


def test_the_names_of_infrastructure_and_commands_are_free(tmp_path):
    for folder in ("experiments", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("ntl", "data_prep"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "results" / "paper")
    shutil.copy(ROOT / "README.md", tmp_path)
    names = ["metrics", "paper", "plan"]
    for name in names:
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(YAML.format(name=name))
        (tmp_path / "experiments" / f"{name}.py").write_text(MODULE.format(name=name))
    code = f"""
from pathlib import Path
from experiments.__main__ import main
from experiments.config.compose import load_experiment
from experiments.config.discovery import module, shown
assert set({names}) <= set(shown()), shown()
for name in {names}:
    assert module(name).__file__ == str(Path("experiments", name + ".py").resolve())
    assert list(load_experiment(name).arms) == ["ce", "ntl_was"]
assert main(["status", *{names}]) == 0
assert main(["tables", *{names}]) == 0
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in names:
        assert f"{name}: 0 of 2 runs finished, 2 missing" in done.stdout
        assert (tmp_path / "outputs" / "tables" / f"{name}.md").read_text().startswith(f"# A table of {name}\n")
