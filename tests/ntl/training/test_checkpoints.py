"""Only a whole checkpoint is resumed from; what is damaged is passed over, said and removed."""

import json
import logging

import pytest

from ntl.training import checkpoints


@pytest.fixture
def folder(tmp_path):
    """Three sealed checkpoints; the best of the last one is the first, of the others themselves."""
    for step, best in ((10, 10), (20, 20), (30, 10)):
        made = tmp_path / f"checkpoint-{step}"
        (made / "inner").mkdir(parents=True)
        (made / "model.safetensors").write_bytes(bytes(range(256)) * step)
        (made / "inner" / "rng.pth").write_bytes(b"random state")
        state = {"best_model_checkpoint": str(tmp_path / f"checkpoint-{best}"), "log_history": []}
        (made / checkpoints.STATE).write_text(json.dumps(state))
        checkpoints.seal(made)
    return tmp_path


def truncate(made):
    path = made / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip(made):
    path = made / "inner" / "rng.pth"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def unfinished(made):
    (made / checkpoints.SEAL).unlink()


def half_a_seal(made):
    path = made / checkpoints.SEAL
    path.write_text(path.read_text()[:40])


def missing(made):
    (made / "inner" / "rng.pth").unlink()


DAMAGE = {
    truncate: "model.safetensors has changed",
    flip: "inner/rng.pth has changed",
    unfinished: "was not finished",
    half_a_seal: "seal cannot be read",
    missing: "inner/rng.pth is missing",
}


def test_the_last_checkpoint_is_found(folder):
    assert checkpoints.last_whole(folder).name == "checkpoint-30"
    assert checkpoints.flaw(folder / "checkpoint-30") is None
    assert len(list(folder.iterdir())) == 3


def test_checkpoints_are_ordered_by_step_and_not_by_name(folder):
    (folder / "checkpoint-20").rename(folder / "checkpoint-100")
    assert checkpoints.last_whole(folder).name == "checkpoint-30"  # whose own best is whole; 100 has lost its best
    state = folder / "checkpoint-30" / checkpoints.STATE
    (folder / "checkpoint-30").rename(folder / "checkpoint-9")
    assert state.parent.exists() is False
    assert checkpoints.last_whole(folder).name == "checkpoint-10"


@pytest.mark.parametrize(("damage", "said"), DAMAGE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_checkpoint_is_passed_over(folder, caplog, damage, said, record_property):
    damage(folder / "checkpoint-30")
    with caplog.at_level(logging.WARNING):
        assert checkpoints.last_whole(folder).name == "checkpoint-20"
    assert len(caplog.records) == 1
    assert "checkpoint-30" in caplog.text and said in caplog.text
    assert not (folder / "checkpoint-30").exists()  # or training would find it when it gets there
    assert (folder / "checkpoint-10").exists()
    record_property("faults", 1)


def test_two_damaged_ones_are_passed_over(folder, record_property):
    truncate(folder / "checkpoint-30")
    flip(folder / "checkpoint-20")
    assert checkpoints.last_whole(folder).name == "checkpoint-10"
    record_property("faults", 2)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda value: value.__name__)
def test_a_checkpoint_whose_best_predecessor_is_damaged_is_passed_over(folder, caplog, damage, record_property):
    damage(folder / "checkpoint-10")
    with caplog.at_level(logging.WARNING):
        assert checkpoints.last_whole(folder).name == "checkpoint-20"
    assert "checkpoint-10" in caplog.text and "checkpoint-30" in caplog.text
    assert not (folder / "checkpoint-30").exists()
    record_property("faults", 1)


def test_a_checkpoint_whose_best_predecessor_is_gone_is_passed_over(folder, record_property):
    import shutil

    shutil.rmtree(folder / "checkpoint-10")
    assert checkpoints.last_whole(folder).name == "checkpoint-20"
    record_property("faults", 1)


def test_the_folder_may_have_moved(folder, tmp_path_factory):
    moved = folder.rename(tmp_path_factory.mktemp("elsewhere") / "checkpoints")
    assert checkpoints.last_whole(moved) == moved / "checkpoint-30"


def test_nothing_whole_is_nothing(folder, tmp_path):
    for made in folder.iterdir():
        unfinished(made)
    assert checkpoints.last_whole(folder) is None
    assert checkpoints.last_whole(tmp_path / "never made") is None


def test_other_files_are_left_alone(folder):
    (folder / "checkpoint-best").mkdir()
    (folder / "notes.txt").write_text("mine")
    assert checkpoints.last_whole(folder).name == "checkpoint-30"
    assert (folder / "checkpoint-best").exists() and (folder / "notes.txt").exists()
