"""Checkpoints are sealed; a signal ends training at the end of a step."""

import os
import signal

import pytest
from helpers.training import HARD, stop_at, train

from ntl.training import checkpoints
from ntl.training import train as training
from ntl.training.stopping import SIGNALS, Stopped


def test_every_checkpoint_is_sealed(tmp_path):
    train(tmp_path, steps=4)
    made = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert made == ["checkpoint-2", "checkpoint-4"]
    assert [checkpoints.flaw(tmp_path / name) for name in made] == [None, None]
    training.remove_checkpoints(tmp_path)
    assert not tmp_path.exists()


def test_a_stop_at_the_last_step_is_a_finished_run(tmp_path):
    _, result = train(tmp_path, tell=stop_at(4))
    assert result.steps == 4


@pytest.mark.parametrize("number", SIGNALS)
def test_being_asked_twice_is_being_asked_once_except_by_ctrl_c(number, tmp_path):
    def tell(now, values):
        if now == 2 and "loss" in values:
            for _ in range(2):
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt) as stop:
        train(tmp_path, tell=tell, **HARD)
    saved = [path.name for path in tmp_path.glob("checkpoint-*")]
    if number == signal.SIGINT:
        assert not isinstance(stop.value, Stopped) and saved == []
    else:
        assert stop.value.number == number and saved == ["checkpoint-3"]
