"""What the README shows must work as it stands there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import accumulated, tiny

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_a_loss_is_added_by_the_two_files_that_the_readme_shows(tmp_path: Path) -> None:
    copy = tmp_path / "ntl"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if not name.startswith(("results/runs/", "tests/")) and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    for block in [*blocks("python"), *blocks("yaml")]:
        if match := re.match(r"# (\S+\.(?:py|yaml))\n", block):
            (copy / match[1]).write_text(block)
    command = [sys.executable, "run.py", "loss=mine", "loss.weight=0.5", "logger=none", "train.steps=4"]
    command += ["train.eval_every=2", "train.batch_size=4", "dataset.train_size=40", "dataset.validation_size=8"]
    command += ["dataset.test_size=8", "train.threads=1"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (record,) = (copy / "outputs" / "runs").glob("*/*/record.json")
    assert '"ntl.losses.mine.CrossEntropyWithNumberMass"' in record.read_text()


def test_the_loss_for_anyones_trainer_is_what_the_readme_says(tmp_path: Path) -> None:
    (example,) = [block for block in blocks("python") if "ObjectiveMixin" in block]
    using = accumulated.trainer("gpt2", tmp_path, exact=True)
    names = {"tokenizer": tiny.encoding().tokenizer, "args": using.args, "data": using.train_dataset}
    names["model"] = tiny.model("gpt2").train()
    exec(example, names)
    names["trainer"].data_collator = using.data_collator
    names["trainer"].train()
    assert names["trainer"].state.global_step == 1


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def test_every_test_that_a_promise_names_is_there():
    text = (ROOT / "docs" / "promises.md").read_text()
    named, file = 0, ""
    for path, function in re.findall(r"`((?:[\w/]+\.py)?)(?:::(test_\w+))?`", text):
        file = path or file
        if path or function:
            named += 1
            content = (ROOT / "tests" / file).read_text()
            assert not function or f"def {function}(" in content, (file, function)
    assert named > 30
