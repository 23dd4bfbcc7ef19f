"""The losses need torch alone, and so does the mixin for Trainers."""

import json
import subprocess
import sys
from importlib.metadata import requires

PROGRAM = """
import json, sys
import torch
before = set(sys.modules)
from ntl.losses import NumberTokenLoss, CrossEntropyWithNTL, NTLoss, NumberLevelLoss, GaussianCrossEntropy
from ntl.losses.functional import cross_entropy_with_ntl
from ntl.integrations.transformers import ObjectiveMixin
from ntl.numbers import NumberVocabulary
numbers = NumberVocabulary(ids=torch.arange(10), values=torch.arange(10.0), vocab_size=12)
logits = torch.randn(2, 3, 12, requires_grad=True)
CrossEntropyWithNTL(numbers)({"logits": logits}, torch.randint(12, (2, 3))).backward()
print(json.dumps([sorted(sys.modules), sorted(set(sys.modules) - before)]))
"""


def test_nothing_but_torch_is_loaded():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded, ours = (set(names) for names in json.loads(result.stdout))
    top = {name.split(".")[0] for name in loaded}
    assert not top & {"transformers", "scipy", "omegaconf", "hydra", "pandas", "datasets", "ntloss", "tokenizers"}
    # What our imports add is the standard library, torch, and what torch itself depends on.
    torchs = {name.split(";")[0].split(">")[0].split("=")[0].strip().replace("-", "_") for name in requires("torch")}
    allowed = {*sys.stdlib_module_names, "ntl", "torch", "mpmath", *torchs, "typing_extensions"}
    assert {name.split(".")[0] for name in ours} <= allowed
    assert {name for name in ours if name.startswith("ntl.")} == {
        "ntl.integrations",
        "ntl.integrations.transformers",
        "ntl.losses",
        "ntl.losses._checks",
        "ntl.losses._distances",
        "ntl.losses._spans",
        "ntl.losses.dropin",
        "ntl.losses.encoded",
        "ntl.losses.functional",
        "ntl.losses.fused",
        "ntl.losses.successors",
        "ntl.losses.modules",
        "ntl.losses.objectives",
        "ntl.losses.options",
        "ntl.numbers",
        "ntl.options",
        "ntl.text",
    }
