"""The Trainer around an objective: what it minimises, logs, keeps, and goes on from."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers import tiny

from ntl.data import IGNORE, model_inputs
from ntl.losses import CrossEntropy, CrossEntropyWithNTL
from ntl.settings import TrainSettings
from ntl.training import checkpoints
from ntl.training import train as training

FAMILIES = ("t5", "gpt2")
# Number tokens per answer: 1, 3, 0, 5 | 2, 1, 7, 0.
HALVES = (tiny.ROWS[:4], tiny.ROWS[4:])


def settings(**options):
    few = {"steps": 4, "batch_size": 4, "eval_every": 2, "warmup_steps": 0, "log_every": 1, "device": "cpu"}
    return TrainSettings(**(few | {"learning_rate": 3e-3} | options))


def objective(model, kind="ntl", **options):
    numbers = tiny.encoding().numbers.resized(model.config.vocab_size)
    return CrossEntropy(numbers, **options) if kind == "ce" else CrossEntropyWithNTL(numbers, **options)


def train(folder, family="t5", given=None, dropout=0.3, seed=0, tell=lambda step, values: None, made=None, **options):
    """Train a tiny model; returns it with the result."""
    model = tiny.model(family, seed=7, dropout=dropout)
    made = made or objective(model, **(given or {}))
    result = training.train(
        model,
        tiny.layout(family),
        made,
        tiny.dataset(),
        tiny.dataset(tiny.ROWS[:5]),
        settings(**options),
        seed,
        folder,
        tell,
    )
    return model, result


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def one_step(folder, family, batch_size, accumulate, kind):
    """The parameters after one step of plain gradient descent over all rows."""
    model = tiny.model(family, seed=7)
    made = objective(model, kind, weight=2.0) if kind == "ntl" else objective(model, kind)
    arguments = training.arguments(settings(steps=1, eval_every=1, max_grad_norm=0.0), made, 0, folder)
    arguments.per_device_train_batch_size = batch_size
    arguments.gradient_accumulation_steps = accumulate
    trainer = training.ObjectiveTrainer(
        objective=made,
        model=model,
        args=arguments,
        train_dataset=tiny.dataset(),
        eval_dataset=tiny.dataset(),
        data_collator=tiny.layout(family).train_batch,
        optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
    )
    trainer.train()
    return weights(model), trainer.state.log_history


@pytest.mark.parametrize("kind", ["ce", "ntl"])
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batches_of_unequal_counts_equal_one_large_batch(family, kind, tmp_path):
    large, log = one_step(tmp_path / "a", family, 8, 1, kind)
    small, micro_log = one_step(tmp_path / "b", family, 4, 2, kind)
    single, _ = one_step(tmp_path / "c", family, 1, 8, kind)  # some micro-batches hold no number at all
    before = weights(tiny.model(family, seed=7))
    for name in large:
        for other in (small, single):
            torch.testing.assert_close(other[name], large[name], rtol=1e-4, atol=2e-6, msg=name)
    moved = max(float((large[name] - before[name]).abs().max()) for name in large)
    assert moved > 1e-2
    for part in ("loss", "ce", *(["ntl"] if kind == "ntl" else [])):
        assert micro_log[0][part] == pytest.approx(log[0][part], rel=1e-5)


def test_a_mean_over_micro_batch_means_would_be_seen(tmp_path):
    """The test above can fail: the halves' own means differ clearly from the whole's."""
    model = tiny.model("t5", seed=7)
    made, layout = objective(model), tiny.layout("t5")
    whole, *halves = (layout.train_batch(list(tiny.dataset(rows))) for rows in (tiny.ROWS, *HALVES))
    parts = [made(model(**model_inputs(b)), b).parts for b in (whole, *halves)]
    for name in ("ce", "ntl"):
        naive = (parts[1][name] + parts[2][name]) / 2
        assert abs(naive / parts[0][name] - 1) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_zero_trains_as_cross_entropy_to_the_bit(family, tmp_path):
    plain, history = train(tmp_path / "a", family, {"kind": "ce"}, accumulate=2)
    zero, other = train(tmp_path / "b", family, {"weight": 0.0}, accumulate=2)
    assert_same(weights(plain), weights(zero))
    for row, theirs in zip(history.history, other.history, strict=True):
        assert all(theirs[name] == value for name, value in row.items())
    third, _ = train(tmp_path / "c", family, {"weight": 0.3}, accumulate=2)
    with pytest.raises(AssertionError):
        assert_same(weights(plain), weights(third))


def test_the_parts_of_the_loss_are_logged(tmp_path):
    told = []
    _, result = train(tmp_path, given={"weight": 0.5}, tell=lambda step, values: told.append((step, values)))
    rows = [row for row in result.history if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["loss"] == pytest.approx(row["ce"] + 0.5 * row["ntl"], rel=1e-5)
    validated = [row for row in result.history if "eval_ce" in row]
    assert [row["step"] for row in validated] == [2, 4]
    assert all({"eval_ce", "eval_ntl", "eval_loss"} <= set(row) for row in validated)
    measured = [row for row in rows if "grad_ntl_over_ce" in row]
    assert [row["step"] for row in measured] == [1, 3]  # at the steps after 0 and 2 updates
    for row in measured:
        assert row["grad_ntl_over_ce"] == pytest.approx(row["grad_ntl"] / row["grad_ce"])
        assert row["grad_ntl"] > 0
    assert not any(isinstance(value, str) or "runtime" in name for row in result.history for name, value in row.items())
    assert [values | {"step": step} for step, values in told if "train_loss" not in values] == result.history
    assert [step for step, values in told if "loss" in values] == [1, 2, 3, 4]
    assert result.steps == 4


def test_logged_means_are_over_the_steps_since_the_last_log(tmp_path):
    _, every = train(tmp_path / "a", dropout=0.0)
    _, second = train(tmp_path / "b", dropout=0.0, log_every=2)
    rows = [row for row in every.history if "loss" in row]
    for index, row in enumerate(row for row in second.history if "loss" in row):
        for name in ("ce", "ntl"):
            assert row[name] == pytest.approx((rows[2 * index][name] + rows[2 * index + 1][name]) / 2, rel=1e-5)


def test_the_measured_gradients_are_those_of_the_terms(tmp_path):
    _, result = train(tmp_path, given={"weight": 0.5}, dropout=0.0, batch_size=8, steps=2)
    model = tiny.model("t5", seed=7)
    made, batch = objective(model, weight=0.5), tiny.layout("t5").train_batch(list(tiny.dataset()))
    norms = {}
    for name, term in made.terms(model(**model_inputs(batch)), batch).items():
        gradients = torch.autograd.grad(term, list(model.parameters()), retain_graph=True)
        norms[name] = float(torch.cat([g.flatten() for g in gradients]).norm())
    row = result.history[0]
    assert row["grad_ce"] == pytest.approx(norms["ce"], rel=1e-4)
    assert row["grad_ntl"] == pytest.approx(norms["ntl"], rel=1e-4)


def test_measuring_gradients_changes_nothing(tmp_path):
    often, with_ratio = train(tmp_path / "a", gradient_norms_every=1)
    never, without = train(tmp_path / "b", gradient_norms_every=0)
    assert_same(weights(often), weights(never))
    assert any("grad_ntl_over_ce" in row for row in with_ratio.history)
    assert not any(name.startswith("grad_ce") for row in without.history for name in row)


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_is_a_mean_over_the_tokens_of_the_whole_split(family, tmp_path):
    rows = tiny.ROWS[:7]
    found = []
    for size in (1, 3, 64):
        model = tiny.model(family, seed=7)
        made = objective(model)
        arguments = training.arguments(settings(), made, 0, tmp_path)
        arguments.per_device_eval_batch_size = size
        trainer = training.ObjectiveTrainer(
            objective=made,
            model=model,
            args=arguments,
            eval_dataset=tiny.dataset(rows),
            data_collator=tiny.layout(family).train_batch,
        )
        found.append(trainer.evaluate())
    ce = ntl = labels = numbers = 0.0
    for item in tiny.dataset(rows):
        batch = tiny.layout(family).train_batch([item])
        parts = made(model(**model_inputs(batch)), batch).parts
        count = made.count(batch["labels"])
        ce, ntl = ce + parts["ce"] * count.labels, ntl + parts["ntl"] * count.numbers
        labels, numbers = labels + count.labels, numbers + count.numbers
    assert int(labels) == sum(
        int((tiny.layout(family).train_batch([i])["labels"] != IGNORE).sum()) for i in tiny.dataset(rows)
    )
    for metrics in found:
        assert metrics["eval_ce"] == pytest.approx(float(ce / labels), rel=1e-5)
        assert metrics["eval_ntl"] == pytest.approx(float(ntl / numbers), rel=1e-5)


class Scripted(CrossEntropy):
    """Validates at values given beforehand; the validation total runs the other way."""

    def __init__(self, numbers, values):
        super().__init__(numbers)
        self.values, self.batches = values, 0

    def loss(self, logits, labels, counts=None):
        found = super().loss(logits, labels, counts)
        if torch.is_grad_enabled():
            return found
        value = torch.tensor(self.values[self.batches])
        self.batches += 1
        return type(found)(total=1 / value, parts={"ce": value, "other": 1 / value})


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


def test_every_checkpoint_is_sealed(tmp_path):
    train(tmp_path, steps=4)
    made = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert made == ["checkpoint-2", "checkpoint-4"]
    assert [checkpoints.flaw(tmp_path / name) for name in made] == [None, None]
    training.remove_checkpoints(tmp_path)
    assert not tmp_path.exists()


HARD = {"steps": 12, "eval_every": 4, "accumulate": 2, "batch_size": 2, "gradient_norms_every": 3, "log_every": 2}


def stop_at(step, number=signal.SIGTERM):
    def tell(now, values):
        if now == step and "loss" in values:
            os.kill(os.getpid(), number)

    return tell


@pytest.mark.parametrize(("family", "number"), [("t5", signal.SIGTERM), ("gpt2", signal.SIGINT)])
def test_a_stopped_run_ends_as_the_uninterrupted_one(family, number, tmp_path):
    whole, expected = train(tmp_path / "a", family, **HARD)
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    for step in (2, 6):  # the second time between two validations
        with pytest.raises(training.Stopped, match=f"stopped at step {step + 1} of 12"):
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


def test_a_stop_at_the_last_step_is_a_finished_run(tmp_path):
    _, result = train(tmp_path, tell=stop_at(4))
    assert result.steps == 4


@pytest.mark.parametrize("number", training.SIGNALS)
def test_being_asked_twice_is_being_asked_once_except_by_ctrl_c(number, tmp_path):
    def tell(now, values):
        if now == 2 and "loss" in values:
            for _ in range(2):
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt) as stop:
        train(tmp_path, tell=tell, **HARD)
    saved = [path.name for path in tmp_path.glob("checkpoint-*")]
    if number == signal.SIGINT:
        assert not isinstance(stop.value, training.Stopped) and saved == []
    else:
        assert stop.value.number == number and saved == ["checkpoint-3"]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_run_goes_on_from_an_older_checkpoint_when_newer_ones_are_damaged(lost, tmp_path, record_property):
    whole, expected = train(tmp_path / "a", **HARD)
    with pytest.raises(training.Stopped):
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


def scripted(values):
    return Scripted(tiny.encoding().numbers.resized(tiny.model("t5").config.vocab_size), values)


@pytest.mark.parametrize(("stopped_at", "moves"), [(6, True), (12, False), (12, True)])
def test_a_run_finds_its_best_checkpoint_after_it_goes_on(stopped_at, moves, tmp_path):
    """In a folder that has moved too; and when it was killed after the last step, while answering."""
    whole, expected = train(tmp_path / "a", made=scripted(BEST_FIRST), **HARD)
    assert expected.best_step == 4
    if stopped_at == 12:
        train(tmp_path / "b", made=scripted(BEST_FIRST), **HARD)
    else:
        with pytest.raises(training.Stopped):
            train(tmp_path / "b", made=scripted(BEST_FIRST), tell=stop_at(stopped_at), **HARD)
    folder = (tmp_path / "b").rename(tmp_path / "elsewhere") if moves else tmp_path / "b"
    resumed, result = train(folder, made=scripted(BEST_FIRST[2:]), **HARD)
    assert result.steps == 12
    assert result.best_step == 4
    assert_same(weights(whole), weights(resumed))
    if stopped_at == 12:
        assert result.history == expected.history


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loss_that_is_not_finite_ends_the_run(family, tmp_path, record_property):
    with pytest.raises(training.NotFinite, match=r"by step \d+; a lower train.learning_rate"):
        train(tmp_path, family, learning_rate=1e30, steps=8)
    record_property("faults", 1)


def test_a_loss_that_is_not_finite_between_two_logs_ends_the_run(tmp_path, record_property):
    class Once(CrossEntropy):
        steps = 0

        def loss(self, logits, labels, counts=None):
            found = super().loss(logits, labels, counts)
            if torch.is_grad_enabled():
                self.steps += 1
                if self.steps == 3:
                    found.total = found.total * float("inf")
            return found

    numbers = tiny.encoding().numbers.resized(tiny.model("t5").config.vocab_size)
    with pytest.raises(training.NotFinite):
        train(tmp_path, made=Once(numbers), steps=10, eval_every=10, log_every=10)
    record_property("faults", 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "train.steps: got 0"),
        ({"batch_size": 0}, "train.batch_size: got 0"),
        ({"accumulate": 0}, "train.accumulate: got 0"),
        ({"learning_rate": 0.0}, "train.learning_rate: got 0.0"),
        ({"learning_rate": float("nan")}, "train.learning_rate: got nan"),
        ({"precision": "fp8"}, "expected fp32, bf16 or fp16"),
        ({"device": "tpu"}, "expected auto or cpu"),
        ({"eval_every": 8}, "validated at least once"),
        ({"steps": 5}, "a multiple of train.eval_every=2"),
        ({"schedule": "cosin"}, "nearest: cosine"),
        ({"warmup_steps": -1}, "train.warmup_steps: got -1"),
        ({"weight_decay": float("nan")}, "train.weight_decay: got nan"),
        ({"max_grad_norm": -1.0}, "train.max_grad_norm: got -1.0"),
        ({"eval_examples": 0}, "train.eval_examples: got 0"),
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
    import test_train as t

    def tell(step, values):
        print(step, flush=True)
        if step == int(sys.argv[2]):
            sys.stdin.readline()

    options = t.HARD | {"steps": 24, "log_every": 1}
    model, result = t.train(Path(sys.argv[1]), tell=tell, **options)
    t.torch.save(model.state_dict(), Path(sys.argv[1]) / "end.pt")
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_resumes_to_the_same_end(number, tmp_path, record_property):
    here = Path(__file__).resolve()
    path = [str(here.parent), str(here.parents[2]), str(here.parents[3])]

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
