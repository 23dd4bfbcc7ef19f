"""Training from start to end: which weights are kept, and what a stopped or killed run goes on from."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers import tiny
from helpers.training import HARD, Scripted, assert_same, objective, scripted, settings, stop_at, train, weights

from ntl.training import checkpoints
from ntl.training import train as training
from ntl.training.stopping import Stopped


@pytest.mark.parametrize(
    ("values", "best"), [((3.0, 1.0, 2.0, 4.0), 4), ((4.0, 3.0, 2.0, 1.0), 8), ((1.0, 2.0, 3.0, 4.0), 2)]
)
def test_the_checkpoint_of_the_lowest_validation_cross_entropy_is_kept(values, best, tmp_path):
    numbers = tiny.encoding().numbers.resized(tiny.model("t5").config.vocab_size)
    at = {}

    def tell(step, logged):
        if "eval_ce" in logged:
            at[step] = logged["eval_ce"]

    model, result = train(tmp_path / "a", made=Scripted(numbers, values), steps=8, tell=tell)
    assert list(at.values()) == list(values)
    assert result.best_step == best
    # the weights are those of that step: a run of the same schedule that stops there by force
    last, other = train(tmp_path / "b", made=Scripted(numbers, values), steps=8, keep_best=False)
    assert other.steps == 8
    if best == 8:
        assert_same(weights(model), weights(last))
    else:
        from safetensors.torch import load_file

        kept = load_file(tmp_path / "a" / f"checkpoint-{best}" / "model.safetensors")
        assert all(torch.equal(weights(model)[name], value) for name, value in kept.items())
        with pytest.raises(AssertionError):
            assert_same(weights(model), weights(last))


PLATEAU = {"mode": "min", "factor": 0.5, "patience": 1}
VALUES = (3.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.25, 0.5)


def torchs_rates(values, steps, every, rate):
    """The learning rate of each step under torch's own schedule, given the values of the validations."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **PLATEAU)
    rates = []
    for step in range(1, steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        if step % every == 0:
            schedule.step(values[step // every - 1])
    return rates


def rates(result):
    return [row["learning_rate"] for row in result.history if "learning_rate" in row]


def test_the_plateau_schedule_is_torchs_on_the_validation_cross_entropy(tmp_path):
    """The validation total runs the other way. Stopped at a validation that has used up the patience, and after one."""
    options = {"steps": 16, "schedule": "reduce_lr_on_plateau", "schedule_options": PLATEAU, "learning_rate": 2e-3}
    expected = torchs_rates(VALUES, 16, 2, 2e-3)
    assert len(set(expected)) == 3  # it is lowered twice
    model, whole = train(tmp_path / "a", made=scripted(VALUES), **options)
    assert rates(whole) == expected
    for step, seen in ((5, 3), (10, 5)):  # a stop comes one step after the row that asks for it
        folder = tmp_path / str(step)
        with pytest.raises(Stopped, match=f"stopped at step {step + 1} of 16"):
            train(folder, made=scripted(VALUES), tell=stop_at(step), **options)
        resumed, result = train(folder, made=scripted(VALUES[seen:]), **options)
        assert rates(result) == expected
        assert_same(weights(model), weights(resumed))


@pytest.mark.parametrize(("family", "number"), [("t5", signal.SIGTERM), ("gpt2", signal.SIGINT)])
def test_a_stopped_run_ends_as_the_uninterrupted_one(family, number, tmp_path):
    whole, expected = train(tmp_path / "a", family, **HARD)
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    for step in (2, 6):  # the second time between two validations
        with pytest.raises(Stopped, match=f"stopped at step {step + 1} of 12"):
            train(tmp_path / "b", family, tell=stop_at(step, number), **HARD)
        assert (tmp_path / "b" / f"checkpoint-{step + 1}").is_dir()
    assert {n: signal.getsignal(n) for n in before} == before
    logged = training.history(tmp_path / "b")
    assert logged[-1]["step"] == 7
    resumed, result = train(tmp_path / "b", family, **HARD)
    assert_same(weights(whole), weights(resumed))
    assert result.best_step == expected.best_step
    assert [row for row in result.history if "eval_ce" in row] == [row for row in expected.history if "eval_ce" in row]


@pytest.mark.parametrize("keep_best", [True, False])
def test_a_run_killed_after_its_last_step_takes_no_other(keep_best, tmp_path):
    # six steps of two rows of eight: the end lies within an epoch, where the library would go on
    options = {"steps": 6, "eval_every": 2, "batch_size": 2, "keep_best": keep_best}
    first, expected = train(tmp_path, **options)
    again, result = train(tmp_path, **options)
    assert_same(weights(first), weights(again))
    assert (result.steps, result.best_step, result.history) == (6, expected.best_step, expected.history)


@pytest.mark.parametrize("at", ["in between", "the end"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_a_checkpoint_that_does_not_fill_the_model_is_refused(at, lora, tmp_path):
    from safetensors.torch import load_file, save_file

    from ntl.models import lora as adapters
    from ntl.models.weights import UnfitWeights
    from ntl.settings import LoraSettings

    def run(tell=lambda step, values: None):
        model = tiny.model("gpt2")
        made = objective(model)
        model = adapters.add(model, LoraSettings(r=2), 0) if lora else model
        few = settings(steps=4, eval_every=2)
        data = tiny.dataset()
        return training.train(model, tiny.layout("gpt2"), made, data, data, few, 0, tmp_path, tell)

    if at == "in between":
        with pytest.raises(Stopped):
            run(stop_at(2))
    else:
        run()
    for file in tmp_path.glob("checkpoint-*/*model.safetensors"):
        save_file({f"net.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
        checkpoints.seal(file.parent)
    with pytest.raises(UnfitWeights, match=r"missing: .*unexpected: net\."):
        run()


@pytest.mark.parametrize("lost", [1, 2])
def test_a_run_goes_on_from_an_older_checkpoint_when_newer_ones_are_damaged(lost, tmp_path, record_property):
    whole, expected = train(tmp_path / "a", **HARD)
    with pytest.raises(Stopped):
        train(tmp_path / "b", tell=stop_at(10), **HARD)
    steps = sorted((int(path.name[11:]) for path in (tmp_path / "b").glob("checkpoint-*")), reverse=True)
    assert steps == [11, 8, 4]
    for step in steps[:lost]:
        path = tmp_path / "b" / f"checkpoint-{step}" / "optimizer.pt"
        path.write_bytes(path.read_bytes()[:-100])
    resumed, result = train(tmp_path / "b", **HARD)
    assert_same(weights(whole), weights(resumed))
    assert (result.best_step, result.history) == (expected.best_step, expected.history)
    record_property("faults", lost)


BEST_FIRST = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]  # two batches at each of three validations


@pytest.mark.parametrize(("stopped_at", "moves"), [(6, True), (12, False), (12, True)])
def test_a_run_finds_its_best_checkpoint_after_it_goes_on(stopped_at, moves, tmp_path):
    """In a folder that has moved too; and when it was killed after the last step, while answering."""
    whole, expected = train(tmp_path / "a", made=scripted(BEST_FIRST), **HARD)
    assert expected.best_step == 4
    if stopped_at == 12:
        train(tmp_path / "b", made=scripted(BEST_FIRST), **HARD)
    else:
        with pytest.raises(Stopped):
            train(tmp_path / "b", made=scripted(BEST_FIRST), tell=stop_at(stopped_at), **HARD)
    folder = (tmp_path / "b").rename(tmp_path / "elsewhere") if moves else tmp_path / "b"
    resumed, result = train(folder, made=scripted(BEST_FIRST[2:]), **HARD)
    assert result.steps == 12
    assert result.best_step == 4
    assert_same(weights(whole), weights(resumed))
    if stopped_at == 12:
        assert result.history == expected.history


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "train.steps: got 0"),
        ({"batch_size": 0}, "train.batch_size: got 0"),
        ({"accumulate": 0}, "train.accumulate: got 0"),
        ({"learning_rate": 0.0}, "train.learning_rate: got 0.0"),
        ({"learning_rate": float("nan")}, "train.learning_rate: got nan"),
        ({"precision": "fp8"}, "expected one of fp32, bf16, fp16"),
        ({"device": "tpu"}, "expected auto or cpu"),
        ({"eval_every": 8}, "a multiple of train.eval_every=8"),
        ({"schedule": "constant", "schedule_options": {"num_cycles": 2}}, "train.schedule=constant has none"),
        ({"steps": 5}, "a multiple of train.eval_every=2"),
        ({"schedule": "cosin"}, "nearest: cosine"),
        ({"warmup_steps": -1}, "train.warmup_steps: got -1"),
        ({"weight_decay": float("nan")}, "train.weight_decay: got nan"),
        ({"max_grad_norm": -1.0}, "train.max_grad_norm: got -1.0"),
        ({"eval_examples": 0}, "train.eval_examples: got 0"),
        ({"answer_examples": 3, "fsdp": {"version": 2}}, "train.answer_examples: got 3 with train.fsdp"),
        ({"gradient_norms_every": -1}, "train.gradient_norms_every: got -1"),
        ({"threads": 0}, "train.threads: got 0"),
        ({"workers": -1}, "train.workers: got -1"),
    ],
)
def test_settings_that_cannot_be_trained_with_are_refused(wrong, said):
    training.check(settings())
    with pytest.raises(ValueError, match=said):
        training.check(settings(**wrong))


SCRIPT = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    sys.path[:0] = sys.argv[3:]
    import torch
    from helpers import training as t

    def tell(step, values):
        print(step, flush=True)
        if step == int(sys.argv[2]):
            sys.stdin.readline()

    options = t.HARD | {"steps": 24, "log_every": 1}
    model, result = t.train(Path(sys.argv[1]), tell=tell, **options)
    torch.save(model.state_dict(), Path(sys.argv[1]) / "end.pt")
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_resumes_to_the_same_end(number, tmp_path, record_property):
    here = Path(__file__).resolve()
    path = [str(here.parents[2]), str(here.parents[3])]

    def start(name, wait_at=-1):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / name), str(wait_at), *path]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    whole = start("whole")
    whole.communicate()
    assert whole.returncode == 0
    broken = start("broken", wait_at=14)
    for line in broken.stdout:
        if int(line) == 14:
            broken.send_signal(number)
            break
    broken.communicate("\n")
    assert broken.returncode != 0
    assert not (tmp_path / "broken" / "end.pt").exists()
    last = checkpoints.last_whole(tmp_path / "broken")
    assert last.name == ("checkpoint-12" if number == signal.SIGKILL else "checkpoint-15")
    again = start("broken")
    steps = [int(line) for line in again.communicate()[0].split()]
    assert again.returncode == 0
    assert steps[0] == int(last.name[11:]) + 1
    ends = [torch.load(tmp_path / name / "end.pt", weights_only=True) for name in ("whole", "broken")]
    assert_same(*ends)
    states = [
        json.loads((tmp_path / name / "checkpoint-24" / checkpoints.STATE).read_text()) for name in ("whole", "broken")
    ]
    assert states[0]["best_global_step"] == states[1]["best_global_step"]
    record_property("faults", 1)
