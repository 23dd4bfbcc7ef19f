"""What others wrote, weights, archives and texts, is read and never run, and writes nowhere but in its folder."""

import io
import json
import os
import pickle
import re
import tarfile
from pathlib import Path

import pytest
import torch
from helpers import tiny

from data_prep.base import DataError
from data_prep.custom import Custom
from data_prep.download import extract, fetch
from experiments.config.compose import ConfigurationError, compose
from experiments.config.instantiate import instantiate
from ntl import encodings, models
from ntl import predict as saving
from ntl.settings import EvalSettings, ModelSettings

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    ROOT / "run.py",
    *(path for name in ("ntl", "data_prep", "experiments") for path in (ROOT / name).rglob("*.py")),
]


class Planted:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture
def folder(tmp_path):
    """A T5 in the hub's layout."""
    folder = tmp_path / "model"
    tiny.model("t5").save_pretrained(folder)
    tiny.encoding().save(folder)
    return folder


def read(folder):
    """What a run with model=custom model.name=<folder> does to get its model."""
    settings = ModelSettings("x", "auto", init="pretrained", tokenizer="pretrained", path=str(folder))
    models.check(settings)
    encoding = encodings.build("digits", encodings.PretrainedTokenizer(str(folder)))
    return models.build(settings, encoding, 0)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", ["plain pickle", "torch's archive"])
def test_a_pickle_among_the_weights_is_refused_and_not_run(folder, tmp_path, kind):
    (folder / "model.safetensors").unlink()
    content = {"shared.weight": Planted(tmp_path / "ran")}
    if kind == "plain pickle":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content))
    else:
        torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(models.NotAvailable, match="a pickle of other things than tensors, which is never run") as error:
        read(folder)
    assert "weights_only" not in str(error.value) and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_damaged_weights_are_named(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"no weights")
    with pytest.raises(models.NotAvailable, match="could not be read"):
        read(folder)


def test_tensors_alone_in_the_older_format_are_read(folder):
    expected = read(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(expected, folder / "pytorch_model.bin")
    for name, tensor in read(folder).state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_code_that_a_model_brings_along_is_not_run(folder, tmp_path):
    (folder / "theirs.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "theirs.Tokenizer"]})
    edit(folder / "config.json", auto_map={"AutoConfig": "theirs.C", "AutoModelForSeq2SeqLM": "theirs.M"})
    read(folder)  # as the T5 that it is
    edit(folder / "config.json", model_type="theirs")
    with pytest.raises(models.NotAvailable, match="contains custom code"):
        read(folder)
    assert not (tmp_path / "ran").exists()


def test_nothing_in_the_code_runs_what_it_reads():
    forbidden = re.compile(
        r"trust_remote_code[\"']?\s*[=:]\s*+(?!False)|weights_only\s*=\s*False|allow_pickle\s*=\s*True|"
        r"\bpickle\.loads?\(|\byaml\.(?:unsafe_load|load)\(|(?<![\w.])(?:eval|exec)\(|shell\s*=\s*True"
    )
    found = [
        f"{path.name}: {line}" for path in SOURCES for line in path.read_text().splitlines() if forbidden.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "override",
    [
        "+train.schedule_options._target_=os.mkdir",
        "+train.schedule_options={_target_: os.mkdir}",
        "+model.architecture.x={_target_: os.mkdir}",
        "+train.fsdp.version=[{_target_: os.mkdir}]",
        "+loss._partial_=true",
        "+loss.encoding_options._target_=os.mkdir",
        "loss._target_=os.mkdir",
        "logger._target_=planted.Thing",
        "dataset._target_=planted.Thing",
        "dataset._target_=ntl",
    ],
)
def test_a_configuration_names_classes_of_this_suite_alone(override, tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = override.lstrip("+").partition("=")[0].removesuffix("._target_")
    with pytest.raises(ConfigurationError, match=re.escape(name) + r".*: got .*, expected (no such key|a class of)"):
        instantiate(compose([override]))
    assert not (tmp_path / "ran").exists()


TEXTS = [
    "${oc.env:HOME}",
    "${paths.data}",
    "${nothing:there}",
    "{{ 7 * 7 }}",
    "!!python/object/apply:os.getcwd []",
    "%(x)s",
]


def test_texts_of_a_dataset_are_taken_as_they_stand(tmp_path):
    rows = [{"question": f"{text} {n}?", "answer": f"{text} {n}"} for n in range(10) for text in TEXTS]
    for name, part in (("train", rows[:-6]), ("test", rows[-6:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    config = compose(
        [
            "dataset=custom",
            f"dataset.train={tmp_path}/train.jsonl",
            f"dataset.test={tmp_path}/test.jsonl",
            "logger=none",
        ]
    )
    data = instantiate(config).dataset.prepare(tmp_path / "data", progress=False)
    assert data.rows("test") == rows[-6:]
    assert {row["answer"] for row in data.rows("train")} <= {row["answer"] for row in rows}


def test_a_question_to_a_model_is_taken_as_it_stands(tmp_path, capsys, monkeypatch):
    from experiments.config import command_line

    trained = saving.Trained(
        tiny.model("t5", seed=3, spread=0.5), tiny.encoding(), tiny.layout("t5"), EvalSettings(), max_new_tokens=8
    )
    saving.save(tmp_path / "model", trained, "answer")
    answers = []
    for value in ("1", "a longer value"):
        monkeypatch.setenv("PLANTED", value)
        command_line.predict(
            [f"run={tmp_path / 'model'}", "${oc.env:PLANTED}", "${nothing:there}", "1", "a longer value"]
        )
        answers.append(capsys.readouterr().out.split("\n"))
    assert answers[0] == answers[1] and answers[0][2] != answers[0][3]


def member(tar, name, content=b"planted", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content) if kind == tarfile.REGTYPE else 0, kind, link
    tar.addfile(info, io.BytesIO(content) if kind == tarfile.REGTYPE else None)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_an_archive_writes_only_plain_files_in_its_folder(tmp_path, kind):
    archive, outside = tmp_path / "in" / "a.tar.gz", tmp_path / "outside"
    archive.parent.mkdir()
    outside.write_text("as it was")
    with tarfile.open(archive, "w:gz") as tar:
        member(tar, "../../outside")
        member(tar, str(outside))
        member(tar, "v1.0/train-easy/x.txt", kind=kind, link=str(outside))  # what is wanted, but no file
        member(tar, "../../../train-easy/x.txt", b"wanted")  # what is wanted, but elsewhere
        member(tar, str(tmp_path / "train-hard" / "y.txt"), b"wanted too")
    extract(archive, ["train-easy/x.txt", "train-hard/y.txt"], tmp_path / "in" / "to")
    assert outside.read_text() == "as it was"
    written = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*.*") if path.suffix == ".txt"}
    assert {name: path.read_bytes() for name, path in written.items()} == {
        "in/to/train-easy/x.txt": b"wanted",
        "in/to/train-hard/y.txt": b"wanted too",
    }
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a/..", "http://127.0.0.1:9/..", ""])
def test_an_address_cannot_name_a_file_outside_the_downloads(tmp_path, url):
    with pytest.raises(DataError, match="url"):
        fetch(url, tmp_path / "downloads", None, progress=False)
    assert not (tmp_path / "downloads").exists()


@pytest.mark.parametrize("name", ["../x", "..", "/x/y", "a/b", "a\\b", "", ".x", "a b", "-x", "x\n", "x\0"])
@pytest.mark.parametrize("part", ["dataset", "model", "loss"])
def test_names_are_refused_before_they_become_folders(part, name):
    config = compose(["logger=none"])
    config[part]["name"] = name
    with pytest.raises(ConfigurationError, match=rf"{part}\.name is "):
        instantiate(config)


@pytest.mark.parametrize("name", ["../tables", "/etc/x", "..", "ablation/../../x"])
def test_names_of_experiments_and_arms_are_those_that_there_are(name):
    with pytest.raises(ConfigurationError, match="unknown experiment"):
        compose([f"experiment={name}"])
    with pytest.raises(ConfigurationError, match="unknown arm"):
        compose(["experiment=ablation", f"arm={name}"])


def test_a_file_of_any_name_stays_a_file_of_the_data_folder(tmp_path):
    source = tmp_path / "..strange name"
    source.mkdir()
    for name in ("train", "test"):
        lines = [json.dumps({"question": f"{name} {n}", "answer": str(n)}) for n in range(9)]
        (source / f"..{name} ;x.jsonl").write_text("\n".join(lines))
    data = Custom(train=str(source / "..train ;x.jsonl"), test=str(source / "..test ;x.jsonl"))
    folder = data.prepare(tmp_path / "data", progress=False).folder
    assert folder.parent == tmp_path / "data" / "custom"
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "train.jsonl", "validation.jsonl", "test.jsonl"
    }  # fmt: skip
