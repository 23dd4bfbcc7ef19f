"""Reading models from the hub: from one on this machine, from the cache without it, and when a transfer breaks off."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import checkpoints, local_hub

ROOT = Path(__file__).resolve().parents[3]
REPOSITORY = "someone/tiny-llama"
SCRIPT = """
import json, sys
from ntl import models
from ntl.encodings import build
from ntl.settings import ModelSettings
settings = ModelSettings("tiny", "auto", init="pretrained", tokenizer="pretrained", hub=sys.argv[1])
try:
    models.find(settings)
    using = build("digits", models.tokenizer_source(settings, []))
    model = models.build(settings, using, seed=0)
except ValueError as error:
    print(json.dumps({"error": str(error)}))
else:
    total = float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))
    ids = using.encode("What is 12?")["input_ids"]
    print(json.dumps({"total": total, "ids": ids, "described": models.describe(model, settings),
                      "fingerprint": models.fingerprint(settings)}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    checkpoints.llama(folder)
    return folder


@pytest.fixture
def hub(folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with local_hub.serve_files(REPOSITORY, files) as hub:
        yield hub


def start(endpoint, cache, repository=REPOSITORY, script=SCRIPT, **environment):
    """Begin to read the model in a process of its own, for which `endpoint` is the hub."""
    away = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "PYTHONPATH": str(ROOT), "NO_PROXY": "*"} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script, repository], env=away | own, cwd=ROOT, **pipes)


def read(*arguments, **options):
    process = start(*arguments, **options)
    out, error = process.communicate()
    assert process.returncode == 0, error
    return json.loads(out)


@pytest.fixture(scope="module")
def expected(folder):
    from ntl import models
    from ntl.encodings import build
    from ntl.settings import ModelSettings

    settings = ModelSettings("tiny", "auto", init="pretrained", tokenizer="pretrained", path=str(folder))
    using = build("digits", models.tokenizer_source(settings, []))
    model = models.build(settings, using, seed=0)
    total = float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))
    described = models.describe(model, settings) | {"commit": local_hub.COMMIT}
    return {"total": total, "ids": using.encode("What is 12?")["input_ids"], "described": described,
            "fingerprint": f"{REPOSITORY}@{local_hub.COMMIT}"}  # fmt: skip


def weights_asked_for(hub):
    return [line for line in hub.requests if line.startswith("GET") and "model.safetensors" in line]


@pytest.mark.slow
def test_a_model_is_read_from_the_hub_and_then_from_its_cache(hub, expected, tmp_path):
    assert read(hub.url, tmp_path) == expected
    assert len(weights_asked_for(hub)) == 1
    assert read("http://127.0.0.1:9", tmp_path) == expected  # a hub that is out of reach


@pytest.mark.slow
def test_a_transfer_that_breaks_off_is_taken_up_again(expected, tmp_path):
    checkpoints.llama(tmp_path / "model", vocab_size=100_000)  # more than the library holds in memory before it writes
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with local_hub.serve_files(REPOSITORY, files) as hub:
        hub.breaks = 2
        got = read(hub.url, tmp_path)
        plain = read(hub.url, tmp_path / "another")
    assert got == plain and got["described"]["vocabulary"] == 100_000
    first, again, *_ = weights_asked_for(hub)
    assert " from " not in first and " from " in again
    assert len(weights_asked_for(hub)) == 4


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_reads_leaves_nothing_broken(hub, expected, tmp_path):
    hub.stalls = True
    process = start(hub.url, tmp_path)
    try:
        hub.stalled.wait()
    finally:
        process.kill()
        process.communicate()
    assert not list(tmp_path.rglob("snapshots/*/model.safetensors"))
    assert read(hub.url, tmp_path) == expected
    assert len(weights_asked_for(hub)) == 2


FEW = 3  # the hub is asked once a minute; the library alone asks six times for the first file


def test_a_hub_out_of_reach_is_said_once_and_soon(tmp_path):
    with local_hub.out_of_reach() as hub:
        text = read(hub.url, tmp_path)["error"]
    assert 1 <= hub.attempts <= FEW
    assert len(text.splitlines()) == 1 and text.count(hub.url.removeprefix("http://")) == 1
    assert REPOSITORY in text and "out of reach" in text and "model.path=<folder>" in text


@pytest.mark.slow
def test_a_model_that_the_hub_has_not_is_said(hub, tmp_path):
    text = read(hub.url, tmp_path, repository="someone/none")["error"]
    assert len(text.splitlines()) == 1 and "someone/none" in text and "out of reach" not in text


@pytest.mark.slow
def test_adapters_on_shared_weights_are_refused_before_weights_are_read(tmp_path):
    folder = tmp_path / "qwen2"
    checkpoints.qwen2(folder)
    script = SCRIPT.replace("hub=sys.argv[1]", "hub=sys.argv[1], lora={'r': 2, 'targets': ['lm_head']}")
    with local_hub.serve_files(REPOSITORY, {path.name: path.read_bytes() for path in folder.iterdir()}) as hub:
        said = read(hub.url, tmp_path / "cache", script=script)
    assert "which adapts lm_head" in said["error"] and "shares its weight with model.embed_tokens" in said["error"]
    assert not weights_asked_for(hub)


@pytest.mark.slow
def test_a_run_without_its_model_ends_with_one_line_and_no_record(tmp_path):
    arguments = ["run.py", "model=custom", f"model.name={REPOSITORY}", f"paths.outputs={tmp_path / 'outputs'}"]
    with local_hub.out_of_reach() as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "*"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
        )
    assert 1 <= hub.attempts <= FEW
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "out of reach" in line and "Traceback" not in done.stderr
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_a_slow_hub_is_waited_for(hub, expected, tmp_path):
    """It answers after three seconds; nobody needs to be told of a hub that is merely slow."""
    answer = local_hub.Hub.info

    def slowly(self, name):
        time.sleep(3 if name == "config.json" else 0)
        return answer(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_hub.Hub, "info", slowly)
        assert read(hub.url, tmp_path) == expected
    shutil.rmtree(tmp_path)
