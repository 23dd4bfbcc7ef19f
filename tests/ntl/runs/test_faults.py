"""Errors of the machine, told by what to do about them; tests/test_faults.py has runs that meet them."""

import contextlib
import errno
import gc
import resource
import weakref

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from data_prep.base import DataError
from ntl.runs import faults
from ntl.runs.run import RecordNotWritten

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.2 GiB is free."
)


@contextlib.contextmanager
def little_disk():
    """A disk on which no file grows beyond 10,000 bytes, as the libraries see it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path):
    with path.open("wb") as file:
        file.write(b"0" * 20_000)


WRITERS = {
    "plain": write,
    "torch": lambda path: torch.save({"moments": torch.zeros(20_000)}, path),
    "torch, many": lambda path: torch.save({str(i): torch.zeros(1000) for i in range(10)}, path),
    "safetensors": lambda path: save_file({"weights": torch.zeros(20_000)}, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_whoever_writes_a_full_disk_is_told(write, tmp_path, record_property):
    folder = tmp_path / "not made yet"
    explained = faults.explained(folder)
    with pytest.raises(faults.DiskFull, match="the disk is full") as error, explained, little_disk():
        write(tmp_path / "file")
    assert f"{folder} lies on a disk with " in str(error.value) and "iB free" in str(error.value)
    assert "the same command again: it goes on from the last checkpoint" in str(error.value)
    record_property("faults", 1)


NO_MEMORY = {
    "CUDA": (torch.OutOfMemoryError(CUDA), " (20.00 GiB more were asked for)"),
    "cuBLAS": (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), ""),
    "Python": (MemoryError(), ""),
}


@pytest.mark.parametrize(("raised", "size"), NO_MEMORY.values(), ids=NO_MEMORY)
@pytest.mark.parametrize("during", ["training", "answering", None])
def test_a_lack_of_memory_says_when(during, raised, size, tmp_path, record_property):
    with pytest.raises(faults.OutOfMemory) as error, faults.explained(tmp_path), faults.explained(tmp_path, during):
        raise raised
    assert str(error.value) == f"out of memory {f'while {during}' if during else 'before training'}{size}"
    assert error.value.during == during and error.value.__cause__ is raised
    record_property("faults", 1)


@pytest.mark.parametrize("make", [lambda: torch.zeros(10**15), lambda: np.zeros(10**15), lambda: bytearray(10**17)])
def test_the_libraries_lack_of_memory_is_known(make, tmp_path, record_property):
    with pytest.raises(faults.OutOfMemory, match="before training"), faults.explained(tmp_path):
        make()
    record_property("faults", 1)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("shapes do not match"),
        OSError(errno.EACCES, "Permission denied"),
        RecordNotWritten(errno.ENOSPC, "The record could not be written"),
        DataError("The disk is full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_stay_what_they_are(error, tmp_path):
    assert faults.named(error) is error
    with pytest.raises(type(error)) as raised, faults.explained(tmp_path):
        raise error
    assert raised.value is error


def test_a_fault_behind_another_error_is_found():
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as full:
            raise RuntimeError("could not save") from full
    except RuntimeError as error:
        assert isinstance(faults.named(error), faults.DiskFull)


def test_the_error_of_a_run_holds_none_of_its_memory():
    class Model(list):
        pass

    def run():
        model = Model()
        model.append(model)  # as modules and trainers refer to each other
        alive.append(weakref.ref(model))
        raise ValueError("failed")

    alive = []
    gc.disable()
    try:
        run()
    except ValueError as error:
        kept = error
    assert alive[0]() is not None
    faults.forget(kept)
    gc.enable()
    assert alive[0]() is None
