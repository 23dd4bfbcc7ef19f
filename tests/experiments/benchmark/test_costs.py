"""What the losses cost: methods agree, they take turns, and memory is measured."""

import pytest
import torch

from experiments.benchmark import costs
from experiments.benchmark.settings import (
    CE,
    CE_FUSED,
    FUSED,
    LINEAR,
    NTLOSS,
    NTLOSS_DEFAULT,
    PLAIN,
    REWEIGHED,
    BenchmarkSettings,
)


def test_methods_compute_the_same():
    torch.manual_seed(0)
    logits = torch.randn(40, 300, requires_grad=True)
    labels = costs.labels_of(40, 300, 0.6, "cpu")
    assert int(costs.digits(300).mask(labels).sum()) == 24
    methods = costs.loss_methods(300)
    values = {name: loss(logits, labels) for name, loss in methods.items()}
    for one, other in ((CE, CE_FUSED), (PLAIN, FUSED), (PLAIN, NTLOSS), (REWEIGHED, NTLOSS_DEFAULT)):
        torch.testing.assert_close(values[one], values[other])
    hidden, matrix = torch.randn(40, 8), torch.randn(300, 8)
    heads = {name: loss(hidden, matrix, labels) for name, loss in costs.head_methods(300).items()}
    torch.testing.assert_close(heads[LINEAR], heads[f"head + {FUSED}"])
    torch.testing.assert_close(heads[LINEAR], heads[f"head + {NTLOSS}"])


def test_memory_is_measured():
    def step(size):
        return lambda: torch.ones(size, 2**20).sum()  # 4 MiB a row

    found = [costs.peak_memory(step(size), "cpu") for size in (10, 50)]
    if found[0] is None:
        pytest.skip("the system does not tell")
    assert found == pytest.approx([40, 200], abs=4)


def test_all_take_turns():
    seen = []
    methods = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    seconds = costs.alternate(methods, 3, "cpu")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    rounds = [seen[index : index + 3] for index in range(0, 12, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert {names[0] for names in rounds[1:]} == {"a", "b", "c"}


@pytest.mark.slow
def test_training_steps_update_one_model():
    steps, tokens, columns = costs.training_steps("T5-small", BenchmarkSettings(quick=True), "cpu")
    assert (tokens, columns) == (64, 32_128)
    for step in steps.values():
        step()
