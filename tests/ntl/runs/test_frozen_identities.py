"""The ids of representative runs stay what they are, so that no recorded run is renamed; so do the defaults that they
rely on, which an id leaves out.

After ALGORITHM_VERSION (ntl/runs/identity.py) has been raised, `python -m tests.ntl.runs.test_frozen_identities REASON`
writes the new ids.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.config.compose import compose
from ntl.runs.identity import ALGORITHM_VERSION, public, run_id

FROZEN = Path(__file__).with_suffix(".json")
NEEDS = "a change of identity needs a new ALGORITHM_VERSION and a reason"
RUNS = [  # as arguments of run.py: each scale, family of models, encoding, and kind of data
    "loss=ntl_was",
    "experiment=ablation arm=ntl_was@0.3 seed=1",
    "experiment=ablation arm=ce/subword",
    "experiment=mathematics arm=rt_ntl@0.3",
    "experiment=mathematics arm=xval",
    "experiment=paper/mathematics arm=xval_mask seed=42",
    "experiment=rjokes arm=regression_head",
    "experiment=gpu/gsm8k arm=ntl_was@0.3",
    "loss=xval_mask_signed",
    "experiment=successors arm=dist2@0.1",
    "model=custom model.name=someone/model model.lora.r=8 loss=gce_ntl_was dataset=custom dataset.train=train.jsonl "
    "dataset.test=test.jsonl",
]


def described(arguments: str) -> dict[str, Any]:
    """A run's id, on fixed data and from fixed weights where it reads any, and its options by dotted name."""
    config = compose(arguments.split())
    reads = "pretrained" in (config["model"]["init"], config["model"]["tokenizer"])
    options = {name: value for name, value in flat(public(config)) if not name.endswith("_target_")}
    return {"id": run_id(config, "data", "weights" if reads else None), "options": options}


def flat(node: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items() if isinstance(node, Mapping) and node else [("", node)]:
        yield from flat(value, f"{place}.{key}".strip(".")) if key else [(place, value)]


@pytest.mark.parametrize("arguments", RUNS)
def test_ids_are_frozen(arguments):
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert frozen["algorithm_version"] == ALGORITHM_VERSION and frozen["reason"], NEEDS
    run, before = described(arguments), frozen["runs"][arguments]
    assert run["id"] == before["id"], NEEDS
    shared = run["options"].keys() & before["options"].keys()  # options may be added
    assert {name: run["options"][name] for name in shared} == {name: before["options"][name] for name in shared}, NEEDS


def test_every_encoding_is_among_the_frozen():
    from ntl.encodings import available

    assert {compose(arguments.split())["loss"]["encoding"] for arguments in RUNS} == set(available())


if __name__ == "__main__":
    if FROZEN.exists() and json.loads(FROZEN.read_text(encoding="utf-8"))["algorithm_version"] == ALGORITHM_VERSION:
        sys.exit(NEEDS)
    if not sys.argv[1:]:
        sys.exit("give the reason, as in: python -m tests.ntl.runs.test_frozen_identities 'greedy decoding corrected'")
    runs = {arguments: described(arguments) for arguments in RUNS}
    content = {"algorithm_version": ALGORITHM_VERSION, "reason": sys.argv[1], "runs": runs}
    FROZEN.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
