"""What others wrote is data: no weights, configuration, archive, name or text runs code or leaves its folder."""

import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import pytest
import tiny

from data_prep.base import DataError
from data_prep.custom import Custom
from data_prep.download import extract
from experiments.configuration import ConfigurationError, compose
from experiments.parts import instantiate
from ntl.encodings import PretrainedTokenizer
from ntl.models import NotAvailable, build
from ntl.settings import ModelSettings


class Malicious:
    """What does harm when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def published(tmp_path):
    """A model's folder in the hub's layout, without code."""
    folder = tmp_path / "published"
    tiny.model("gpt2").save_pretrained(folder)
    tiny.encoding().save(folder)
    return folder


def settings(folder):
    return ModelSettings(name="given", family="auto", init="pretrained", tokenizer="pretrained", path=str(folder))


@pytest.mark.parametrize("archived", [True, False], ids=["zip", "legacy"])
def test_weights_that_hold_code_are_refused_and_not_executed(published, tmp_path, archived):
    import torch

    (published / "model.safetensors").unlink()
    weights = published / "pytorch_model.bin"
    if archived:
        torch.save({"weight": Malicious(tmp_path / "harm")}, weights)
    else:
        weights.write_bytes(pickle.dumps({"weight": Malicious(tmp_path / "harm")}))
    with pytest.raises(NotAvailable, match="could not be read"):
        build(settings(published), tiny.encoding(), 0)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("kind", ["gpt2", "mine"])
def test_code_beside_a_model_is_not_executed(published, tmp_path, kind):
    code = f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\nclass C: ...\n"
    (published / "modeling_mine.py").write_text(code)
    mapped = {
        "AutoConfig": "modeling_mine.C",
        "AutoModelForCausalLM": "modeling_mine.C",
        "AutoTokenizer": ["modeling_mine.C"] * 2,
    }
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((published / name).read_text()) | {"auto_map": mapped}
        if kind == "mine":
            content["model_type" if name == "config.json" else "tokenizer_class"] = "mine"
        (published / name).write_text(json.dumps(content))
    try:
        encoding = tiny.encoding()
        build(settings(published), encoding, 0)
        PretrainedTokenizer(str(published)).load(True)
    except ValueError:
        assert kind == "mine"  # a type that the library does not know cannot be had without its code
    assert not (tmp_path / "harm").exists()


def test_an_archive_writes_nothing_outside_of_its_folder(tmp_path):
    archive, folder = tmp_path / "in" / "a.tar", tmp_path / "out"
    archive.parent.mkdir()
    members = ["../x/evil.txt", "/x/evil.txt", "x/../../x/evil.txt", str(tmp_path / "x" / "evil.txt")]
    with tarfile.open(archive, "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo("x/link.txt")
            member.type, member.linkname = kind, "../../secret"
            tar.addfile(member)
        for name in members:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(DataError, match=r"holds no x/link\.txt"):
        extract(archive, ["x/link.txt", "x/evil.txt"], folder)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if not path.name.startswith(".")} <= {
        "in", "in/a.tar", "out", "out/x", "out/x/evil.txt"
    }  # fmt: skip


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "..", ".x", "a\\b", "x\n", ""])
@pytest.mark.parametrize("part", ["dataset", "model", "loss"])
def test_names_lead_out_of_no_folder(part, name):
    config = compose(["logger=none"])
    config[part]["name"] = name
    with pytest.raises(ConfigurationError, match=rf"{part}.name is .*expected letters, digits"):
        instantiate(config)


def test_a_data_set_of_such_a_name_writes_nothing(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}\n')
    with pytest.raises(ValueError, match="expected letters, digits"):
        Custom(name="../x", train=str(file), test=str(file)).prepare(tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_texts_are_never_evaluated(tmp_path):
    """Neither as an interpolation of the configuration, nor as a template, nor as code."""
    texts = [
        "${oc.env:HOME} ${paths.data}",
        "{0} {question} %s %(x)s",
        "__import__('os').getcwd()",
        "$(id) `id`",
        "~/x",
    ]
    rows = [{"question": text, "answer": f"{index} {text}"} for index, text in enumerate(texts)]
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test.write_text('{"question": "${seed}?", "answer": "${seed}"}\n')
    dataset = instantiate(compose([
        "logger=none", "dataset=custom", f"dataset.folder={tmp_path}", "dataset.train=train.jsonl",
        "dataset.test=test.jsonl", "dataset.answers=text", "loss=ce",
    ])).dataset  # fmt: skip
    prepared = dataset.prepare(tmp_path / "data", progress=False)
    read = {row["question"]: row["answer"] for split in ("train", "validation") for row in prepared.rows(split)}
    assert read == {row["question"]: row["answer"] for row in rows}
    assert prepared.rows("test") == [{"question": "${seed}?", "answer": "${seed}"}]
    encoding = tiny.encoding()
    assert [encoding.decode(encoding.encode(text)["input_ids"]) for text in texts] == texts
