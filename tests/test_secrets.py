"""A whole run with secrets, names and absolute paths planted wherever there is room; then every byte is read."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny

ROOT = Path(__file__).resolve().parents[1]
ROWS = [f'{{"question": "What is {n} + 1?", "answer": "{n + 1}"}}\n' for n in range(40)]
PLANTED = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_plantedplantedplantedplanted",
    "USER": "agnes-planted",
    "LOGNAME": "agnes-planted",
    "SOME_PASSWORD": "pw-planted-0123",
    "HTTPS_PROXY": "http://agnes-planted:pw-planted-0123@127.0.0.1:9",
}


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["finished", "failed"])
def test_nothing_that_is_kept_or_sent_tells_of_user_machine_or_secrets(tmp_path, fails):
    home = tmp_path / "home-planted"
    model, data = home / "models" / "tiny", home / "data of agnes"
    data.mkdir(parents=True)
    tiny.model("t5").save_pretrained(model)
    tiny.encoding().save(model)
    for name, rows in (("train", ROWS[:30]), ("test", ROWS[30:])):
        (data / f"{name}.jsonl").write_text("".join(rows))
    line = [
        *("dataset=custom", f"'dataset.train={data}/train.jsonl'", f"'dataset.test={data}/test.jsonl'"),
        *("model=custom", f"model.name={model}", "loss=ntl_was", "logger=wandb", "logger.mode=offline"),
        *("train.steps=2", "train.batch_size=4", "train.eval_every=1", "train.warmup_steps=0", "eval.margin=1"),
        *(f"paths.{name}={home / name}" for name in ("data", "outputs", "results")),
        *(["train.learning_rate=1e30"] if fails else []),
    ]
    line = [part.strip("'").replace("=" + str(data), f"='{data}") + "'" if str(data) in part else part for part in line]
    environment = os.environ | PLANTED | {"HOME": str(home), "HF_HOME": str(home / "hf")}
    done = subprocess.run([sys.executable, "run.py", *line], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == int(fails), done.stderr

    runs = home / "outputs" / "runs"
    kept = [path for path in runs.glob("*/*/*") if path.is_file()]
    logged = [path for path in runs.glob("*/*/wandb/**/*") if path.is_file()]
    assert not (home / "results").exists()
    assert {"record.json"} <= {path.name for path in kept} and any(path.suffix == ".wandb" for path in logged)
    # W&B's own debug log names folders; it stays in outputs/ and is no part of what is sent. It holds no secret either.
    secrets = {PLANTED[name] for name in ("WANDB_API_KEY", "HF_TOKEN", "SOME_PASSWORD", "HTTPS_PROXY", "USER")}
    private = secrets | {"planted", str(tmp_path), str(ROOT), socket.gethostname()}
    found = [
        f"{path.name}: {word}"
        for path in kept + logged
        for word in (secrets if path.suffix == ".log" else private)
        # as a word: a machine's name may be of two letters, which other words have too
        if re.search(rb"(?<![A-Za-z0-9])" + re.escape(word.encode()) + rb"(?![A-Za-z0-9])", path.read_bytes())
    ]
    assert not found
