"""What docs/compatibility.md says goes together runs end to end; everything else is refused before any work."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.analysis.compatibility import accepted_encodings, answers, families, families_of
from experiments.config.compose import ConfigurationError, choices, compose
from experiments.config.instantiate import instantiate
from ntl.runs.record import read_record

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = "data_prep/examples"
SIZES = "dataset.train_size=8", "dataset.validation_size=2", "dataset.test_size=2"
DATASETS = {
    "arithmetic": SIZES,
    "mathematics": ("dataset.difficulties=[easy]", *SIZES),
    "multiplication": ("dataset.digits=2", "dataset.extrapolation_digits=3", *SIZES),
    "gsm8k": ("dataset.source=local", f"dataset.folder={EXAMPLES}/gsm8k", "dataset.validation_size=2"),
    "rjokes": ("dataset.source=local", f"dataset.folder={EXAMPLES}/rjokes"),
    "multirc": ("dataset.source=local", f"dataset.folder={EXAMPLES}/multirc", "dataset.validation_passages=1"),
    "custom": (f"dataset.folder={EXAMPLES}/custom", "dataset.train=train.jsonl", "dataset.test=test.csv"),
}
TINY = {
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2},
}
RUN = ("model.vocab_size=300", "train.steps=2", "train.batch_size=4", "train.warmup_steps=0", "train.eval_every=2",
       "train.eval_examples=2", "train.threads=1", "eval.examples=2", "eval.margin=2", "logger=none")  # fmt: skip
EVERY_LOSS = ("multiplication", "multirc")  # one data set for each kind of answers; the others try each encoding once


def losses(family, dataset):
    """The losses that are run: all, or the first of each encoding."""
    possible = [loss for loss in choices("loss") if family in families_of(loss, dataset)]
    if dataset in EVERY_LOSS:
        return possible
    return list({accepted_encodings(loss)[0]: loss for loss in reversed(possible)}.values())


def test_every_data_set_has_rows_for_these_tests():
    assert set(DATASETS) == set(choices("dataset"))
    assert {kind for dataset in EVERY_LOSS for kind in answers(dataset)} == {"number", "text"}
    assert set(TINY) == set(families()) - {"auto"}  # a model of any family is whatever it is given


@pytest.mark.slow
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("family", TINY)
def test_what_is_declared_compatible_runs(family, dataset, tmp_path):
    """Two steps of each loss, and of each further encoding, by one process."""
    tried = losses(family, dataset)
    sweeps = [[f"loss={','.join(tried)}"]]
    if dataset in EVERY_LOSS:
        for encoding in sorted({e for loss in tried for e in accepted_encodings(loss)[1:]}):
            others = [loss for loss in tried if encoding in accepted_encodings(loss)[1:]]
            sweeps.append([f"loss={','.join(others)}", f"loss.encoding={encoding}"])
    size = [f"model.architecture.{key}={value}" for key, value in TINY[family].items()]
    places = [f"paths.{name}={tmp_path / name}" for name in ("data", "outputs", "results")]
    expected = set()
    for sweep in sweeps:
        command = [sys.executable, "run.py", "-m", f"model={family}_nano", f"dataset={dataset}", *sweep]
        done = subprocess.run(
            [*command, *RUN, *DATASETS[dataset], *size, *places], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        chosen = sweep[0].partition("=")[2].split(",")
        encoding = sweep[1].partition("=")[2] if sweep[1:] else None
        expected |= {(loss, encoding or accepted_encodings(loss)[0]) for loss in chosen}
    records = [read_record(path.parent) for path in tmp_path.rglob("record.json")]
    assert {record["status"] for record in records} == {"finished"}
    assert {(r["config"]["loss"]["name"], r["config"]["loss"]["encoding"]) for r in records} == expected


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_is_not_declared_compatible_is_refused(dataset):
    """Groups are composed one by one and put together, because none of them depends on another."""
    node = compose([f"dataset={dataset}", *DATASETS[dataset], "logger=none"])
    loss_nodes = {loss: compose([f"loss={loss}"])["loss"] for loss in choices("loss")}
    for family in TINY:
        model = compose([f"model={family}_nano"])["model"]
        for loss, loss_node in loss_nodes.items():
            config = node | {"model": model, "loss": loss_node}
            if family in families_of(loss, dataset):
                instantiate(config)
            else:
                with pytest.raises(ConfigurationError, match=r"^the encoding '\w+' got .*, expected "):
                    instantiate(config)


@pytest.mark.parametrize("loss", choices("loss"))
def test_an_encoding_that_a_loss_does_not_accept_is_refused(loss):
    from ntl import encodings

    config = compose([f"loss={loss}", "logger=none"])
    for encoding in set(encodings.available()) - set(accepted_encodings(loss)):
        with pytest.raises(ConfigurationError, match=f"cannot use the encoding '{encoding}'"):
            instantiate({**config, "loss": {**config["loss"], "encoding": encoding}})
