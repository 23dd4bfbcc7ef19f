"""`python .ci/compare.py OLD_TREE NEW_TREE`: show whether two checkouts of the suite behave in the same way.

Both trees do the same short runs, whose weights, loss curves, answers and metrics are compared bit by bit, and are
given the same bad inputs, whose exit codes have to be equal; messages that differ are shown side by side, for a person
to judge. Where the trees are meant to differ in how a command is spelt, SPELLINGS says so. Whatever is written, data
included, goes to a scratch folder for each tree. All commands run one after another, each on one thread of the CPU.

  --only PATTERN  only the cases whose name matches this shell pattern (`t5/*`) or holds this text
  --keep FOLDER   keep the old tree's outcome, so that later comparisons with the same revision run the new tree alone
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from safetensors.numpy import load_file


@dataclass(frozen=True)
class Spelling:
    """Words of the cases below, and what an older and a newer tree take in their place; None leaves a word out.

    A tree is a newer one if `pattern` is found in one of its files that the glob `files` names.
    """

    files: str
    pattern: str
    words: Mapping[str, tuple[str | None, str | None]]


SPELLINGS = (
    Spelling(
        "ntl/**/*.py",
        r"(?m)^ +loss_implementation *:",
        {
            "LOSS=plain": ("train.fused=off", "train.loss_implementation=plain"),
            "LOSS=fused": ("train.fused=logits", "train.loss_implementation=fused"),
            "LOSS=linear": ("train.fused=linear", "train.loss_implementation=linear"),
            "LOSS=nosuch": ("train.fused=nosuch", "train.loss_implementation=nosuch"),
        },
    ),
    # Left out where `paths` has no such key. A record is found wherever it is written below the folder of its case.
    Spelling(
        "conf/config.yaml",
        r"(?m)\A(?![\s\S]*^ +results *:)",
        {"RECORDS={folder}/results": ("paths.results={folder}/results", None)},
    ),
)
# In the words of a case: {folder} is the case's own, {shared} one of the tree's with the data and the FILES.
PLACES = ("paths.data={shared}/data", "paths.outputs={folder}/outputs", "RECORDS={folder}/results")

ARITHMETIC = (
    "dataset=arithmetic", "dataset.train_size=200", "dataset.validation_size=20", "dataset.test_size=20",
    "dataset.workers=1",
)  # fmt: skip
TRAINING = (
    "train.steps=20", "train.batch_size=8", "train.learning_rate=5e-3", "train.warmup_steps=2", "train.eval_every=10",
    "train.log_every=1", "train.threads=1", "logger=none",
)  # fmt: skip
T5 = (
    "model=t5_nano", "model.vocab_size=300", "model.architecture.d_model=32", "model.architecture.d_kv=16",
    "model.architecture.d_ff=64", "model.architecture.num_layers=1", "model.architecture.num_decoder_layers=1",
    "model.architecture.num_heads=2",
)  # fmt: skip
GPT2 = (
    "model=gpt2_nano", "model.vocab_size=300", "model.architecture.n_embd=32", "model.architecture.n_layer=1",
    "model.architecture.n_head=2",
)  # fmt: skip

FILES = {
    "text/train.jsonl": "".join(
        json.dumps({"question": f"Half of {n}?", "answer": f"Half of it is {n / 2}, I say."}) + "\n" for n in range(80)
    ),
    "text/test.csv": "question,answer\n" + "".join(f'Half of {n}?,"Half of it is {n / 2}, I say."\n' for n in (5, 90)),
    "bad/good.jsonl": '{"question": "1 + 1?", "answer": "2"}\n{"question": "1 + 2?", "answer": "3"}\n',
    "bad/rows.jsonl": '{"question": "1 + 1?", "answer": "2"}\n{"question": "", "answer": "3"}\nnot json\n',
    "bad/columns.csv": "question,solution\n1 + 1?,2\n",
    "bad/semicolons.csv": "question;answer\n1 + 1?;2\n",
    "bad/mixed.jsonl": "".join(f'{{"question": "{n}?", "answer": "{a}"}}\n' for n, a in enumerate("123-")),
    "bad/array.jsonl": '[{"question": "1 + 1?", "answer": "2"}]\n',
    "bad/file.txt": "1 + 1? 2\n",
}


@dataclass(frozen=True)
class Run:
    """A run that has to succeed; `questions` are put to the trained model afterwards, with `predict`."""

    name: str
    words: tuple[str, ...]
    questions: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What python is called with."""
        return ("run.py", *self.words, *PLACES)


@dataclass(frozen=True)
class Bad:
    """A command that has to be refused."""

    name: str
    command: tuple[str, ...]


def _run(name: str, loss: str, *words: str, model: Sequence[str] = T5, asked: bool = False) -> Run:
    questions = ("What is 3 + 4?", "Work out 12 - 5.") if asked else ()
    return Run(name, (*ARITHMETIC, *model, *TRAINING, f"loss={loss}", *words), questions)


RUNS = (
    *(
        _run(f"{family}/ntl_was/{how}", "ntl_was", f"LOSS={how}", model=model, asked=how == "plain")
        for family, model in (("t5", T5), ("gpt2", GPT2))
        for how in ("plain", "fused", "linear")
    ),
    _run("t5/ce", "ce", "loss.label_smoothing=0.1"),
    _run("t5/ntl_mse", "ntl_mse"),
    _run("t5/ntl_was/squash", "ntl_was", "loss.squash=2.0"),
    _run("t5/gce", "gce"),
    _run("t5/gce_ntl_was", "gce_ntl_was"),
    _run("t5/ntl_was/place_value", "ntl_was", "loss.place_value=2.0"),
    _run("gpt2/ntl_was/reweigh", "ntl_was", "loss.reweigh=true", model=GPT2),
    _run("t5/dist2", "dist2"),
    _run("gpt2/del", "del", model=GPT2),
    _run("t5/rt", "rt"),
    _run("t5/rt_ntl", "rt_ntl"),
    _run("t5/xval", "xval", asked=True),
    _run("t5/xval_mask", "xval_mask", asked=True),
    _run("t5/regression_head", "regression_head"),
    _run("gpt2/regression_head", "regression_head", model=GPT2, asked=True),
    _run("t5/ntl_was/dropout", "ntl_was", "model.architecture.dropout_rate=0.1", "train.accumulate=2", "seed=1"),
    _run("t5/ntl_was/subword", "ntl_was", "loss.encoding=subword"),
    _run("t5/ntl_was/expected", "ntl_was", "eval.decode=expected"),
    _run("gpt2/ntl_was/beams", "ntl_was", "model.loss_on=all", "eval.beams=2", "eval.examples=7", model=GPT2),
    Run(
        "t5/custom_text",
        (
            "dataset=custom", "dataset.train={shared}/text/train.jsonl", "dataset.test={shared}/text/test.csv", *T5,
            *TRAINING, "loss=ntl_was",
        ),
    ),
)  # fmt: skip


def _train(name: str, *words: str) -> Bad:
    """A bad command of run.py that would be a short run if it was accepted."""
    return Bad(f"run/{name}", ("run.py", *ARITHMETIC, *T5, *TRAINING, *PLACES, *words))


def _bare(name: str, *words: str) -> Bad:
    """A bad command of run.py without the options of a short run, where these would be in the way."""
    return Bad(f"run/{name}", ("run.py", *words))


def _custom(name: str, train: str, *words: str) -> Bad:
    files = (f"dataset.train={{shared}}/bad/{train}", "dataset.test={shared}/bad/good.jsonl")
    return Bad(f"custom/{name}", ("run.py", "dataset=custom", *files, *T5, *TRAINING, *PLACES, *words))


def _module(module: str, *commands: str) -> Iterator[Bad]:
    for command in commands:
        yield Bad(f"{module}: {command}", ("-m", module, *command.split()))


BAD = (
    # Keys.
    _train("key of a group", "train.stps=3"),
    _train("key at the top", "sed=1"),
    _train("key of a loss", "loss=ce", "loss.weight=0.3"),
    _train("key of another data set", "dataset.digits=3"),
    _train("key of paths", "+paths.cache=x"),
    _train("key of an architecture", "+model.architecture.layers=3"),
    # Types.
    _train("type: integer", "train.steps=many"),
    _train("type: number", "train.learning_rate=fast"),
    _train("type: truth value", "eval.untrained=perhaps"),
    _train("type: retry", "retry=perhaps"),
    _train("type: dataset", "dataset.train_size=1.5"),
    _train("type: loss", "loss=ntl_was", "loss.weight=much"),
    # Ranges.
    _train("range: steps", "train.steps=0"),
    _train("range: steps and eval_every", "train.eval_every=7"),
    _train("range: batch_size", "train.batch_size=-1"),
    _train("range: learning_rate", "train.learning_rate=0"),
    _train("range: beams", "eval.beams=0"),
    _train("range: weight", "loss=ntl_was", "loss.weight=-1"),
    _train("range: sigma", "loss=gce", "loss.sigma=-1"),
    _train("range: label_smoothing", "loss.label_smoothing=2"),
    _train("range: dataset", "dataset.train_size=0"),
    _train("range: vocabulary", "model.vocab_size=1"),
    _train("range: lora", "model.lora.r=-1"),
    # Choices.
    _train("choice: model", "model=t5_nan"),
    _train("choice: dataset", "dataset=arithmetics"),
    _train("choice: loss", "loss=ntl"),
    _train("choice: train", "train=tpu"),
    _train("choice: eval", "eval=published"),
    _train("choice: logger", "logger=tensorboard"),
    _train("choice: scale", "scale=cpu/nosuch"),
    _train("choice: experiment", "-m", "experiment=ablatoin"),
    _train("choice: launcher", "-m", "seed=0,1", "hydra/launcher=slrm"),
    _train("choice: loss implementation", "LOSS=nosuch"),
    _train("choice: precision", "train.precision=fp8"),
    _train("choice: schedule", "train.schedule=cosin"),
    _train("choice: decode", "eval.decode=sample"),
    _train("choice: kind", "loss=ntl_was", "loss.kind=mas"),
    _train("choice: init", "model.init=random"),
    _train("choice: source", "dataset.source=hub"),
    _bare("choice: loss_on", *ARITHMETIC, *GPT2, *TRAINING, *PLACES, "model.loss_on=question"),
    # Combinations.
    _bare("gpt2 with xval", "model=gpt2_nano", "loss=xval", *PLACES),
    _bare("gpt2 with xval_mask", "model=gpt2_nano", "loss=xval_mask", *PLACES),
    _bare("regression head on multirc", "dataset=multirc", "loss=regression_head", *PLACES),
    _bare("regression head on gsm8k", "dataset=gsm8k", "loss=regression_head", *PLACES),
    _train("encoding of del", "loss=del", "loss.encoding=subword"),
    _train("encoding of no kind", "loss=ntl_was", "loss.encoding=digit"),
    _train("expected values of subwords", "loss=ntl_was", "loss.encoding=subword", "eval.decode=expected"),
    _train("linear with fsdp", "LOSS=linear", "train=fsdp"),
    _train("linear with xval", "LOSS=linear", "loss=xval"),
    _train("local without a folder", "dataset.source=local"),
    _train("name that leads out", "dataset.name=../x"),
    _bare("model that is no folder", "model=custom", "model.name=./nowhere", *PLACES),
    _bare("model without a name", "model=custom", *PLACES),
    _train("training that diverges", "train.learning_rate=1e30"),
    # Words in the wrong place.
    _train("predict comes last", "predict"),
    _train("run= without predict", "run=abc"),
    _train("dashes", "--steps=3"),
    _train("no key", "fast"),
    _bare("predict alone", "predict"),
    _bare("predict without a question", "predict", "run=abc", "paths.outputs={folder}/outputs"),
    _bare("predict without a run", "predict", "run=abc", "paths.outputs={folder}/outputs", "What is 1 + 1?"),
    _bare("predict with dashes", "predict", "--run=abc", "What is 1 + 1?"),
    # Sweeps, arms and seeds.
    _bare("experiment without -m", "experiment=ablation", *PLACES),
    _train("several seeds without -m", "seed=0,1"),
    _bare("computed experiment", "-m", "experiment=landscape", *PLACES),
    _bare("arm of an experiment", "experiment=ablation", "arm=ntl_was@0.4", *PLACES),
    _train("arm without an experiment", "arm=ce"),
    _bare("one bad arm of a sweep", "-m", "experiment=ablation", "arm=ce,ntl_mse@9", *PLACES),
    _train("seed: negative", "seed=-1"),
    _train("seed: a word", "seed=one"),
    _train("seed: a fraction", "seed=1.5"),
    _train("seed: a truth value", "seed=true"),
    # Lists.
    _train("list: one word", "dataset.modules=arithmetic__ad"),
    _train("list: not closed", "dataset.modules=[arithmetic__add_or_sub"),
    _train("list: of numbers", "dataset.modules=[1,2]"),
    _train("list: empty", "dataset.modules=[]"),
    _train("list: difficulty", "dataset.difficulties=[trivial]"),
    _train("list: test module", "dataset.interpolation=[arithmetic__add_or_sub@trivial]"),
    _train("list: mapping instead", "dataset.modules={{a:1}}"),
    # Files.
    _bare("custom without files", "dataset=custom", *PLACES),
    _custom("no such file", "nowhere.jsonl"),
    _custom("unknown kind of file", "file.txt"),
    _custom("bad rows", "rows.jsonl"),
    _custom("no such column", "columns.csv"),
    _custom("semicolons", "semicolons.csv"),
    _custom("not all numbers", "mixed.jsonl"),
    _custom("json array", "array.jsonl"),
    _custom("share", "good.jsonl", "dataset.validation_share=1.5"),
    _custom("answers", "good.jsonl", "dataset.answers=words"),
    # The other command lines.
    *_module("experiments", "stats", "status nosuch", "tables ablatio", "figures ablation/gpu", "plan nosuch",
             "plan paper/ablation --gpu H2000", "runtime speed", "collect", "collect {folder}/nowhere", "--nosuch",
             "tables --results"),
    *_module("data_prep", "", "nosuch", "nosuch --help", "arithmetic sizes=3", "arithmetic train_size",
             "arithmetic train_size=0", "arithmetic train_size=many", "arithmetic source=nosuch", "arithmetic --nosuch",
             "multiplication digits=0", "custom", "custom train={shared}/bad/rows.jsonl test={shared}/bad/good.jsonl"),
)  # fmt: skip

PATIENCE = 600  # seconds that a command may take
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline", "NO_COLOR": "1", "COLUMNS": "120", "PYTHONUTF8": "1",
}  # fmt: skip
NOT_PASSED_ON = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HYDRA_FULL_ERROR")


class Tree:
    """One of the two checkouts, with a scratch folder for what its commands write."""

    def __init__(self, root: Path, scratch: Path):
        self.root, self.scratch = root.resolve(), scratch.resolve()
        self.words: dict[str, str | None] = {}
        for spelling in SPELLINGS:
            texts = (path.read_text(encoding="utf-8") for path in self.root.glob(spelling.files))
            newer = any(re.search(spelling.pattern, text) for text in texts)
            self.words |= {word: both[newer] for word, both in spelling.words.items()}
        for name, content in FILES.items():
            path = self.scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")

    def call(self, command: Iterable[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Call python in this tree, with the words as the tree spells them."""
        spelt = (self.words.get(word, word) for word in command)
        line = [word.format(folder=folder, shared=self.scratch) for word in spelt if word is not None]
        environment = {key: value for key, value in os.environ.items() if key not in NOT_PASSED_ON}
        environment |= ENVIRONMENT | {"PYTHONPATH": str(self.root)}
        try:
            return subprocess.run(
                [sys.executable, *line],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(line, 124, "", f"error: not done after {PATIENCE} seconds")

    def check(self) -> None:
        """End with a message unless this tree's code is what its commands would run."""
        if not (self.root / "run.py").is_file():
            sys.exit(f"{self.root}: holds no run.py, expected a checkout of the suite")
        code = (
            "import ntl, experiments, data_prep as d; print(ntl.__file__, experiments.__file__, d.__file__, sep='\\n')"
        )
        done = self.call(["-c", code], self.scratch)
        for line in done.stdout.splitlines() or [done.stderr]:
            if not Path(line).resolve().is_relative_to(self.root):
                sys.exit(f"{self.root}: its commands would import {line}")

    def revision(self) -> str | None:
        """The git revision, or None where the tree has changes that are not committed, or is no repository."""
        git = ["git", "-C", str(self.root)]
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
        if changed.returncode or changed.stdout.strip():
            return None
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip() or None

    def neutral(self, text: str) -> str:
        """A message without what has to differ: places, and the hash in a run's id."""
        for place, name in ((self.scratch, "<scratch>"), (self.root, "<tree>")):
            text = text.replace(str(place), name)
        return re.sub(r"(-s\d+-)[0-9a-f]{8}\b", r"\1<hash>", text)


# Carrying a case out. Its outcome is a mapping that json can hold, but for the weights, which are a file beside it.


def outcome_of_run(tree: Tree, run: Run, weights: Path) -> dict[str, Any]:
    """Do a run and read what it left; the weights are copied to `weights`."""
    folder = tree.scratch / "cases" / run.name
    done = tree.call(run.command, folder)
    records = list(folder.rglob("record.json"))
    models = [path.parent for path in folder.rglob("answering.json")]
    if done.returncode or len(records) != 1 or len(models) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        return {
            "failed": f"exit code {done.returncode}, {len(records)} records, {len(models)} models; said: "
            + tree.neutral(said)
        }
    (record,), (model,) = records, models
    content = json.loads(record.read_text(encoding="utf-8"))
    predictions = pyarrow.parquet.read_table(record.with_name("predictions.parquet")).to_pydict()
    weights.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model / "model.safetensors", weights)
    outcome = {
        "data": content["data"]["files"],
        "weights": digests(weights),
        "history": pyarrow.parquet.read_table(record.with_name("history.parquet")).to_pydict(),
        "answers": {
            f"{state}, {split}, {index}": text
            for state, split, index, text in zip(
                *(predictions[name] for name in ("state", "split", "index", "text")), strict=True
            )
        },
        "metrics": flat(content["metrics"]),
        "besides": flat({"model": content["model"], "sizes": content["data"]["sizes"]})
        | {f"note: {note}": True for note in content["notes"]}
        | {f"model/{path.name}": sha256(path.read_bytes()) for path in model.iterdir() if path.suffix == ".json"},
    }
    if run.questions:
        command = ["run.py", "predict", f"run={model}", *run.questions]
        asked = tree.call(command, folder)
        outcome["answers"]["predict, exit code"] = str(asked.returncode)
        outcome["answers"]["predict"] = asked.stdout
    shutil.rmtree(folder)
    return outcome


def outcome_of_bad(tree: Tree, bad: Bad) -> dict[str, Any]:
    """Give a bad command; return the exit code and the message."""
    folder = tree.scratch / "cases" / re.sub(r"[^\w/]+", "_", bad.name)
    done = tree.call(bad.command, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return {"code": done.returncode, "message": tree.neutral(message_of(done.stderr, bad.command[0] == "run.py"))}


def message_of(errors: str, run: bool) -> str:
    """What a command says is wrong: from the last line on that starts with `error:`, or else its last line.

    The other command lines (not `run`) say nothing else there, so that all of it counts.
    """
    lines = errors.strip().splitlines()
    if not run or not lines:
        return "\n".join(lines)
    starts = [number for number, line in enumerate(lines) if line.startswith("error:")]
    return "\n".join(lines[starts[-1] :]) if starts else f"(no line with error:) {lines[-1]}"


def digests(weights: Path) -> dict[str, str]:
    """A sha256 of type, shape and bytes of each tensor, by name."""
    tensors = load_file(weights)
    return {
        name: sha256(f"{tensors[name].dtype} {tensors[name].shape} ".encode() + tensors[name].tobytes())
        for name in sorted(tensors)
    }


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping with its keys joined."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in flat(inner, f"{prefix}/{name}" if prefix else str(name)).items()
    }


# Comparing outcomes.


@dataclass
class Verdict:
    """What the comparison of a run came to: a word for each item, and remarks that fail nothing."""

    items: dict[str, str] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return all(word == SAME for word in self.items.values())

    def compare(self, item: str, old: Mapping[str, Any], new: Mapping[str, Any], largest: float | None = None) -> None:
        """Compare two mappings key by key; `largest` is the largest difference, where the values do not say it."""
        keys = sorted({*old, *new})
        unequal = [key for key in keys if not (key in old and key in new and equal(old[key], new[key]))]
        if old and new and not unequal:
            self.items[item] = SAME
            return
        if largest is None:
            largest = max((distance(old[key], new[key]) for key in unequal if key in old and key in new), default=None)
        number = "" if largest is None or math.isnan(largest) else f", {largest:.2g}"
        self.items[item] = f"{len(unequal)}/{len(keys)} differ{number}" if keys else "nothing"
        self.details += [f"{item}: {shown(key, old, new)}" for key in unequal[:SHOWN]]


SAME = "="
SHOWN = 5  # differences of an item, or keys in one tree only, that are listed
ITEMS = ("data", "weights", "history", "answers", "metrics")


def compare_runs(old: Mapping[str, Any], new: Mapping[str, Any], weights: Sequence[Path]) -> Verdict:
    """Compare what two trees made of one run."""
    verdict = Verdict()
    for tree, outcome in (("old", old), ("new", new)):
        if "failed" in outcome:
            verdict.items |= dict.fromkeys(ITEMS, "no run")
            verdict.details.append(f"the {tree} tree's run failed: {outcome['failed']}")
    if verdict.items:
        return verdict
    verdict.compare("data", old["data"], new["data"])
    moved = None if old["weights"] == new["weights"] else furthest(*map(load_file, weights))
    verdict.compare("weights", old["weights"], new["weights"], moved)

    # Columns that only one tree has are no difference, as long as those that matter are among the shared ones.
    columns = [name for name in old["history"] if name in new["history"]]
    verdict.compare("history", *({name: tree["history"][name] for name in columns} for tree in (old, new)))
    if lacking := {"step", "loss"} - set(columns):
        verdict.items["history"] = "no column"
        verdict.details.append(f"history: no shared column {', '.join(sorted(lacking))}")
    for tree, ours, others in (("old", old, new), ("new", new, old)):
        if only := [name for name in ours["history"] if name not in others["history"]]:
            verdict.remarks.append(f"history: columns in the {tree} tree alone: {', '.join(only)}")

    verdict.compare("answers", old["answers"], new["answers"])
    verdict.compare("metrics", old["metrics"], new["metrics"])
    besides = [
        shown(key, old["besides"], new["besides"])
        for key in sorted({*old["besides"], *new["besides"]})
        if old["besides"].get(key) != new["besides"].get(key)
    ]
    verdict.remarks += [f"besides: {difference}" for difference in besides[:SHOWN]]
    verdict.remarks += [f"besides: and {len(besides) - SHOWN} more"] if len(besides) > SHOWN else []
    return verdict


def equal(old: Any, new: Any) -> bool:
    """Whether two values are the same to the bit: 0.0 is not -0.0, and not a number equals itself."""
    return json.dumps(old) == json.dumps(new)


def distance(old: Any, new: Any) -> float:
    """The largest difference of two numbers or lists of numbers; not a number where they cannot be compared."""
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return math.nan
        return max((distance(*pair) for pair in zip(old, new, strict=True) if not equal(*pair)), default=0.0)
    if isinstance(old, int | float) and isinstance(new, int | float):
        return abs(old - new)
    return math.nan


def furthest(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> float:
    """The largest difference of two sets of weights, over the tensors that both have in one shape."""
    shared = [name for name in old if name in new and old[name].shape == new[name].shape and old[name].size]
    differences = (np.abs(old[name].astype(np.float64) - new[name].astype(np.float64)).max() for name in shared)
    return float(max(differences, default=math.nan))


def shown(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A difference in one line, cut to what can be read."""
    texts = (f"{repr(tree[key])[:60]}" if key in tree else "absent" for tree in (old, new))
    return f"{key}: {' → '.join(texts)}"


# Keeping the old tree's outcomes.


@functools.cache
def platform() -> str:
    """What besides code and case decides the bits of a result: the packages and the processor."""
    versions = [f"{name} {metadata.version(name)}" for name in PACKAGES]
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    return " ".join([sys.version, *versions, *re.findall(r"(?m)^model name.*$|^flags.*$", told)[:2]])


def case_hash(case: Run | Bad) -> str:
    """A hash of a case with all that it stands on."""
    spelt = [(spelling.files, spelling.pattern, sorted(spelling.words.items())) for spelling in SPELLINGS]
    return sha256(repr((case, PLACES, FILES, spelt, ENVIRONMENT, platform())).encode())[:16]


class Kept:
    """Outcomes of one revision of the old tree in a folder: outcomes.json, and the weights of each run."""

    def __init__(self, folder: Path):
        self.folder, self.file = folder, folder / "outcomes.json"
        self.outcomes: dict[str, dict[str, Any]] = (
            json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}
        )

    def get(self, case: Run | Bad) -> dict[str, Any] | None:
        """The outcome of a case, unless there is none, or the case has changed since."""
        entry = self.outcomes.get(case.name)
        return entry["outcome"] if entry and entry["hash"] == case_hash(case) else None

    def put(self, case: Run | Bad, outcome: dict[str, Any]) -> None:
        self.outcomes[case.name] = {"hash": case_hash(case), "outcome": outcome}
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.outcomes, indent=1), encoding="utf-8")
        partial.replace(self.file)

    def weights(self, case: Run | Bad) -> Path:
        return self.folder / "weights" / f"{case.name}.safetensors"


# The whole.


def carried_out(case: Run | Bad, tree: Tree, kept: Kept) -> dict[str, Any]:
    """The outcome of a case in a tree, kept from before if it is."""
    outcome = kept.get(case)
    if outcome is None:
        start = time.monotonic()
        outcome = (
            outcome_of_run(tree, case, kept.weights(case)) if isinstance(case, Run) else outcome_of_bad(tree, case)
        )
        print(f"{tree.scratch.name}: {case.name}: {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        kept.put(case, outcome)
    return outcome


def report_runs(verdicts: Mapping[str, Verdict]) -> None:
    """Print a table of the runs, with what differs below."""
    if not verdicts:
        return
    rows = [("run", *ITEMS), *((name, *(v.items[item] for item in ITEMS)) for name, v in verdicts.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for name, verdict in verdicts.items():
        for line in [*verdict.details, *(f"remark: {remark}" for remark in verdict.remarks)]:
            print(f"  {name}: {line}")
    print()


def report_bad(pairs: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print the bad inputs that the trees answer differently, or that the old one does not refuse."""
    for name, (old, new) in pairs.items():
        if old["code"] != new["code"]:
            print(f"exit code differs: {name}: {old['code']} → {new['code']}")
        elif old["message"] != new["message"]:
            print(f"message differs: {name}")
        elif old["code"] == 0 or old["message"].startswith("(no line"):
            print(f"remark: {name}: both trees end with {old['code']}: {old['message'][:200]}")
        if old != new:
            for old_line, new_line in itertools.zip_longest(*(tree["message"].splitlines() for tree in (old, new))):
                same = old_line == new_line
                print(f"    = {old_line}" if same else f"    old: {old_line or ''}\n    new: {new_line or ''}")


def selected(pattern: str | None) -> list[Run | Bad]:
    """The cases whose name a pattern matches."""
    cases = [*RUNS, *BAD]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "two cases have one name"
    return [c for c in cases if pattern is None or fnmatch.fnmatchcase(c.name, pattern) or pattern in c.name]


def main() -> int:
    """Compare two trees; returns the exit code: 0 if all is equal but for messages, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_TREE")
    parser.add_argument("new", type=Path, metavar="NEW_TREE")
    parser.add_argument("--only", metavar="PATTERN", help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = selected(args.only)
    if not cases:
        parser.error(f"no case matches {args.only}")

    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        old, new = (Tree(getattr(args, name), Path(scratch) / name) for name in ("old", "new"))
        for tree in (old, new):
            tree.check()
        revision = old.revision()
        if args.keep and revision is None:
            print(f"{old.root} has changes that are not committed: its outcome is not kept", file=sys.stderr)
        kept = Kept(args.keep / revision if args.keep and revision else Path(scratch) / "outcomes/old")
        made = Kept(Path(scratch) / "outcomes/new")
        outcomes = {c.name: (carried_out(c, old, kept), carried_out(c, new, made)) for c in cases}
        verdicts = {
            c.name: compare_runs(*outcomes[c.name], [kept.weights(c), made.weights(c)])
            for c in cases
            if isinstance(c, Run)
        }
    refused = {c.name: outcomes[c.name] for c in cases if isinstance(c, Bad)}
    report_runs(verdicts)
    report_bad(refused)

    identical = sum(verdict.identical for verdict in verdicts.values())
    codes = sum(old["code"] == new["code"] for old, new in refused.values())
    messages = sum(old["message"] == new["message"] for old, new in refused.values())
    print(
        f"runs: {identical} of {len(verdicts)} identical; bad inputs: {codes} exit codes of {len(refused)} equal, "
        f"{messages} messages equal"
    )
    return 0 if identical == len(verdicts) and codes == len(refused) else 1


if __name__ == "__main__":
    sys.exit(main())
