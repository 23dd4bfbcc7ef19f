"""Weights that are read fill the model, or are refused; what is read is what is hashed."""

import json
import shutil

import pytest
from helpers import checkpoints, tiny
from safetensors.torch import load_file, save_file

from experiments.config.compose import ConfigurationError, compose
from experiments.config.instantiate import instantiate
from ntl import models
from ntl import predict as saving
from ntl.encodings import build
from ntl.settings import EvalSettings, ModelSettings


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("llama", "qwen2", "t5"):
        checkpoints.MAKE[name](root / name)
    return {name: root / name for name in ("llama", "qwen2", "t5")}


@pytest.fixture
def copied(folders, tmp_path):
    """Copies a checkpoint's folder with its tensors as `change` makes them."""

    def copied(name, change=lambda tensors: tensors):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        folder = shutil.copytree(folders[name], tmp_path / name)
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, {"format": "pt"})
        return folder

    return copied


def settings(folder, **options):
    return ModelSettings("x", "auto", init="pretrained", tokenizer="pretrained", path=str(folder), **options)


def read(folder, encoding="digits"):
    its = settings(folder)
    return models.build(its, build(encoding, models.tokenizer_source(its, [])), 0)


def renamed(tensors):
    return {f"net.{name}": tensor for name, tensor in tensors.items()}


def without(*names):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def added(tensors):
    return tensors | {"classifier.weight": tensors["lm_head.weight"].clone()}


def cut(tensors):
    return tensors | {"model.norm.weight": tensors["model.norm.weight"][:-1].clone()}


UNFIT = {
    "other names": (renamed, r"21 missing: lm_head.weight, .*; 21 unexpected: net.lm_head.weight, .*net"),
    "a tensor left out": (without("model.norm.weight"), r"LlamaForCausalLM; 1 missing: model.norm.weight\)"),
    "an output layer left out": (without("lm_head.weight"), r"1 missing: lm_head.weight\)"),
    "another's head": (added, r"LlamaForCausalLM; 1 unexpected: classifier.weight\)"),
    "another shape": (cut, r"1 of another shape: model.norm.weight \(\[31\], expected \[32\]\)"),
}


@pytest.mark.parametrize(("change", "said"), UNFIT.values(), ids=UNFIT)
def test_weights_that_do_not_fill_the_model_are_refused_and_named(copied, change, said):
    with pytest.raises(models.NotAvailable, match=said):
        read(copied("llama", change))


@pytest.mark.parametrize(("name", "encoding"), [("qwen2", "digits"), ("t5", "xval"), ("t5", "rt"), ("t5", "scalar"),
                                                ("t5", "xval_mask_signed"), ("llama", "scalar")])  # fmt: skip
def test_tied_layers_and_an_encodings_own_may_be_absent(folders, name, encoding):
    read(folders[name], encoding)


@pytest.mark.parametrize(("name", "encoding"), [("t5", "xval"), ("t5", "scalar"), ("llama", "scalar")])
def test_other_tensors_may_not_be_absent_with_an_encodings_own(copied, name, encoding):
    for change in (without("shared.weight", "model.norm.weight"), renamed):
        with pytest.raises(models.NotAvailable, match="missing: "):
            read(copied(name, change), encoding)


def sharded(folder, into="sub"):
    """Move a folder's weights to a shard that an index names."""
    (folder / into).mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").rename(folder / into / "w.safetensors")
    names = load_file(folder / into / "w.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, f"{into}/w.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / into / "w.safetensors"


def doubled(file):
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def test_shards_in_folders_below_are_read_and_hashed(copied):
    folder = copied("llama")
    whole = read(folder).state_dict()
    shard = sharded(folder)
    for name, tensor in read(folder).state_dict().items():
        assert tensor.equal(whole[name])
    before = models.fingerprint(settings(folder))
    doubled(shard)
    assert models.fingerprint(settings(folder)) != before
    assert not read(folder).state_dict()["lm_head.weight"].equal(whole["lm_head.weight"])


def test_weights_that_the_configuration_names_are_hashed(copied):
    folder = copied("llama")
    (folder / "sub").mkdir()
    (folder / "model.safetensors").rename(folder / "sub" / "w.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"transformers_weights": "sub/w.safetensors"}
    (folder / "config.json").write_text(json.dumps(config))
    read(folder)
    before = models.fingerprint(settings(folder))
    doubled(folder / "sub" / "w.safetensors")
    assert models.fingerprint(settings(folder)) != before


def test_files_that_are_not_read_are_not_hashed(copied):
    folder = copied("llama")
    before = models.fingerprint(settings(folder))
    (folder / "pytorch_model.bin").write_bytes(b"an older copy")
    (folder / "training_args.bin").write_bytes(b"")
    assert models.fingerprint(settings(folder)) == before


def refuse(folder, said):
    with pytest.raises(ConfigurationError, match=said):
        instantiate(compose(["model=custom", f"model.name={folder}", "logger=none"]))


@pytest.mark.parametrize("absolute", [False, True])
def test_weights_outside_the_folder_are_refused_before_any_work(copied, tmp_path, absolute):
    folder = copied("llama")
    sharded(folder, str(tmp_path / "other") if absolute else "../other")
    refuse(folder, r"model.path: .* names '.*other/w.safetensors', which is outside the model's folder")


def test_shards_that_are_not_there_and_adapters_are_refused_before_any_work(copied):
    folder = copied("llama")
    sharded(folder).unlink()
    refuse(folder, "names 'sub/w.safetensors', and there is no such file")
    (folder / "adapter_config.json").write_text("{}")
    refuse(folder, "got adapter_config.json in it, expected whole weights; merge the adapters")


def test_a_trained_model_whose_weights_do_not_fill_it_is_refused(tmp_path):
    trained = saving.Trained(tiny.model("t5"), tiny.encoding(), tiny.layout("t5"), EvalSettings(), max_new_tokens=4)
    saving.save(tmp_path / "model", trained, "answer")
    saving.load(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file(renamed(load_file(file)), file, {"format": "pt"})
    with pytest.raises(saving.NoModel, match=r"no whole model: .*missing: .* unexpected: net"):
        saving.load(tmp_path / "model")


def test_a_trained_model_without_its_encodings_own_weights_is_refused(tmp_path):
    using = tiny.encoding("xval")
    trained = saving.Trained(tiny.model("t5", using=using), using, tiny.layout("t5", using=using), EvalSettings(), 4)
    saving.save(tmp_path / "model", trained, "answer")
    saving.load(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file(without("number_head.2.weight")(load_file(file)), file, {"format": "pt"})
    with pytest.raises(saving.NoModel, match=r"1 missing: number_head.2.weight"):
        saving.load(tmp_path / "model")
