"""How strongly NTL acts beside CE, measured on training text before any training: gradients, and λ per number token.

`python -m experiments loss_scale` measures it and writes `results/calibration/loss_scale.json`, from which
`experiments.calibration.loss_scale` makes tables and `experiments.tokenization` a note. No score is looked at.

* CE and NTL are means over labels and over number labels, so that per number token NTL weighs λ · labels / numbers
  relative to CE. A tokenizer that writes an answer in fewer labels than the published one lowers the effective λ.
* The distances of NTL-WAS have the unit of the tokens' values, so that large number tokens make large gradients. The
  squash factor of an arm is the one at which |∇λNTL| / |∇CE| of a fresh model equals that of digits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config.compose import ConfigurationError, compose, load_experiment, run_config
from ntl.files import write_atomically
from ntl.runs.record import RecordError, code_state, environment, read_json, to_json

if TYPE_CHECKING:
    from ntl.encodings import Encoding
    from ntl.rows import Row
    from ntl.runs.execute import Parts

EXPERIMENTS = ("ablation", "tokenization", "multiplication", "rjokes", "gsm8k", "multirc")  # one of each data set
TRAINED = "trained"
ROWS = 2048  # of the training split, drawn by seed: labels are counted on them
BATCHES = 2  # of the same rows: gradients are measured on them
SEEDS = (0, 1)  # of fresh models

_ROW = {"experiment": str, "dataset": str, "fingerprint": str, "arm": str, "encoding": str, "tokenizer": str,
        "weight": float, "squash": (float, type(None)), "number_tokens": int, "largest": float, "labels": int,
        "numbers": int, "gradient_ratio": float}  # fmt: skip


def path(results: Path) -> Path:
    """Where the measurements lie."""
    return results / "calibration" / "loss_scale.json"


def load(results: Path) -> list[dict[str, Any]]:
    """Return the measurements, one per arm and tokenizer; none where nothing was measured.

    Raises:
        RecordError: the file is damaged.
    """
    source = path(results)
    if not source.exists():
        return []
    again = "remove it and measure again (python -m experiments loss_scale)"
    try:
        rows = read_json(source)["measurements"]
        bad = [name for row in rows for name, kind in _ROW.items() if not isinstance(row[name], kind)]
    except (RecordError, KeyError, TypeError) as error:
        raise RecordError(source, f"it does not hold measurements ({error})", again) from error
    if bad:
        raise RecordError(source, f"a measurement's {bad[0]} is of another type", again)
    return rows


def run(
    names: Sequence[str], overrides: Sequence[str], results: Path, data: Path, tokenizers: Path | None = None
) -> Path:
    """Measure the arms of experiments; those of the others that were measured before stay. Returns the file's path.

    Args:
        names: of `EXPERIMENTS`; all if empty.
        overrides: of every configuration, such as `dataset.source=local`.
        data: folder of prepared data.
        tokenizers: folder that holds the published tokenizers by family (t5, gpt2), in place of the hub.

    Raises:
        ConfigurationError: an experiment of which no arm is measured, or an override that is none.
    """
    from ntl.text import did_you_mean

    for name in names:
        if name not in EXPERIMENTS:
            raise ConfigurationError(did_you_mean("experiment of loss_scale", name, EXPERIMENTS))
    names = list(names) or list(EXPERIMENTS)
    kept = [row for row in load(results) if row["experiment"] not in names]
    measured = [row for name in names for row in measure(name, overrides, data, tokenizers)]
    rows = sorted(kept + measured, key=lambda row: EXPERIMENTS.index(row["experiment"]))
    content = {"schema": 1, "code": code_state(), "environment": environment(), "measurements": rows}
    path(results).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path(results), to_json(content))
    return path(results)


def measure(name: str, overrides: Sequence[str], data: Path, tokenizers: Path | None) -> list[dict[str, Any]]:
    """Measure an experiment's NTL-WAS arms with digits and with subwords, with its own tokenizer and the published one.

    An arm `…/squash` comes with the factor that it should have, not the one that it has.
    """
    from experiments.config.instantiate import instantiate
    from ntl import models

    experiment = load_experiment(name, overrides)
    plain = next(arm for arm in experiment.arms if f"{arm}/subword" in experiment.arms and arm.startswith("ntl_was@"))
    paper = compose([f"experiment=paper/{name}"])["model"]
    folder = {"path": str(tokenizers / paper["family"])} if tokenizers else {"hub": paper["hub"]}
    prepared = instantiate(run_config(experiment, plain, 0)).dataset.prepare(data)  # the same for all arms
    train = prepared.rows("train")
    found = []
    for tokenizer, model in ((TRAINED, {}), (paper["family"], {"tokenizer": "pretrained", **folder})):
        for arm in (plain, f"{plain}/subword"):
            config = run_config(experiment, arm, 0)
            parts = instantiate({**config, "model": config["model"] | model})
            encoding = parts.encoding(models.tokenizer_source(parts.model, train))
            ratio = _Ratio(parts, encoding, train)
            row = {
                "experiment": name,
                "dataset": config["dataset"]["name"],
                "fingerprint": prepared.fingerprint,
                "arm": arm,
                "encoding": encoding.name,
                "tokenizer": tokenizer,
                "weight": float(config["loss"]["weight"]),
                "squash": None,
                "number_tokens": len(encoding.numbers),
                "largest": float(encoding.numbers.values.max()),
                "labels": ratio.labels,
                "numbers": ratio.numbers,
                "gradient_ratio": ratio(),
            }
            found.append(row)
        if f"{arm}/squash" in experiment.arms:
            squash = squash_for(ratio, found[-2]["gradient_ratio"])
            found.append(row | {"arm": f"{arm}/squash", "squash": squash, "gradient_ratio": ratio(squash)})
    return found


class _Ratio:
    """|∇λNTL| / |∇CE| of fresh models on training batches: a mean over batches and seeds; and the labels in them."""

    def __init__(self, parts: Parts, encoding: Encoding, train: Sequence[Row]) -> None:
        from ntl import data, models
        from ntl.training.meters import count_labels

        self.parts, self.encoding = parts, encoding
        self.models = [models.build(parts.model, encoding, seed) for seed in SEEDS]
        rows = random.Random(0).sample(list(train), min(ROWS, len(train)))
        items = data.EncodedDataset(rows, encoding, parts.model.question_tokens)
        layout = data.layout_for(self.models[0].config.is_encoder_decoder, encoding, parts.model.loss_on)
        self.labels, self.numbers = count_labels(parts.objective(numbers=encoding.numbers), layout, items)
        size = min(parts.train.batch_size, len(items) // BATCHES)
        self.batches = [layout.train_batch(items.items[k * size : (k + 1) * size]) for k in range(BATCHES)]

    def __call__(self, squash: float | None = None) -> float:
        from ntl.data import model_inputs
        from ntl.training.meters import GradientNorms

        objective = self.parts.objective(numbers=self.encoding.numbers, squash=squash)
        norms = GradientNorms()
        for model in self.models:
            for batch in self.batches:
                norms.measure(objective.terms(model(**model_inputs(batch)), batch), model)
        return norms.means()["grad_ntl_over_ce"]


def squash_for(ratio: Callable[[float], float], target: float) -> float:
    """Return the squash factor, to two digits, at which `ratio(factor)` is `target`.

    Every distance is linear in the factor, so that the ratio nearly is, and a few steps of the secant method suffice.
    """
    from scipy.optimize import root_scalar

    found = root_scalar(lambda squash: ratio(squash) / target - 1, method="secant", x0=9.0, x1=90.0, rtol=1e-3)
    if not found.converged or found.root <= 1:
        raise ValueError(f"got no squash factor above 1 at which the gradient ratio is {target:.3g}")
    return float(f"{found.root:.2g}")


def by_tokenizer(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Pair each arm's measurement with its own tokenizer and with the published one."""
    own = [row for row in rows if row["tokenizer"] == TRAINED]
    other = {(row["experiment"], row["arm"]): row for row in rows if row["tokenizer"] != TRAINED}
    return [(row, other[row["experiment"], row["arm"]]) for row in own]


def labels_per_number(row: Mapping[str, Any]) -> float:
    """By how much more NTL weighs per number token than λ says, relative to CE."""
    return row["labels"] / row["numbers"]


def effective_weight(own: Mapping[str, Any], published: Mapping[str, Any]) -> float:
    """The λ that acts with the published tokenizer as an arm's own λ does with its tokenizer."""
    return own["weight"] * labels_per_number(own) / labels_per_number(published)
