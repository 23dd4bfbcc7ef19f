"""The published sizes with their own tokenizers take one optimizer step on one core."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.shared_data import shared

ROOT = Path(__file__).resolve().parents[3]
# A step by the Trainer of a run; a process of its own, so that its memory and its time are those of the step.
SCRIPT = """
import json, resource, sys
from pathlib import Path
import torch
from experiments.config.compose import compose
from experiments.config.instantiate import instantiate
from ntl import models
from ntl.training import train as training
from ntl.data import EncodedDataset, layout_for
torch.set_num_threads(1)
name, folder, work = sys.argv[1:]
options = [f"model={name}", "model.init=scratch", f"model.path={folder}", "loss=ntl_was", "train.steps=1"]
options += ["train.eval_every=1", "train.batch_size=4", "train.warmup_steps=0", "train.keep_best=false"]
parts = instantiate(compose([*options, "train.device=cpu", "logger=none"]))
encoding = parts.encoding(models.tokenizer_source(parts.model, []))
model = models.build(parts.model, encoding, 0)
model.save_pretrained = model.state_dict = lambda *_, **__: {}  # a checkpoint of gigabytes is not what is tested
before = model.get_input_embeddings().weight[:64].clone()
rows = [{"question": f"What is {n}.5 + {n * 37}?", "answer": str(n * 38 + 0.5)} for n in range(8)]
data = EncodedDataset(rows, encoding)
layout = layout_for(model.config.is_encoder_decoder, encoding)
objective = parts.objective(numbers=encoding.numbers)
result = training.train(model, layout, objective, data, data, parts.train, 0, Path(work))
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "parameters": model.num_parameters(),
    "vocabulary": model.config.vocab_size,
    "tokens": encoding.tokenizer.convert_ids_to_tokens(data[1][0]["input_ids"]),
    "loss": result.history[0]["loss"],
    "ntl": result.history[0]["ntl"],
    "steps": result.steps,
    "moved": float((model.get_input_embeddings().weight[:64] - before).abs().max()),
    "gib": usage.ru_maxrss / 2**20,
    "cpu_seconds": usage.ru_utime + usage.ru_stime,
}))
"""


def save_tokenizer(name, folder):
    """Write what the hub has beside a model's weights: tokenizer and config.json."""
    import transformers

    if name == "t5_small":
        tokenizer = transformers.T5Tokenizer.from_pretrained(shared("tokenizers/t5"))
        config = transformers.T5Config(decoder_start_token_id=0)
    else:
        tokenizer = transformers.GPT2Tokenizer.from_pretrained(shared("tokenizers/gpt2"))
        config = transformers.GPT2Config()
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions", "first"),
    [("t5_small", 60.5, ["▁What", "▁is", "▁", "1", ".", "5"]), ("gpt2_small", 124.4, ["What", "Ġis", "Ġ", "1", "."])],
)
def test_one_step_of_a_published_size(name, millions, first, tmp_path):
    save_tokenizer(name, tmp_path / "model")
    command = [sys.executable, "-c", SCRIPT, name, str(tmp_path / "model"), str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    shutil.rmtree(tmp_path / "work")  # the optimizer's state, a gigabyte
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert round(said["parameters"] / 1e6, 1) == millions
    assert said["tokens"][: len(first)] == first
    assert 5 < said["loss"] < 60 and said["ntl"] > 1 and said["steps"] == 1
    assert said["moved"] > 0
    assert said["gib"] < 6
    assert said["cpu_seconds"] < 90
