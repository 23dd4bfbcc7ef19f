"""Models from scratch (paired by seed and name), from a local folder, and the published sizes."""

import copy

import pytest
import torch
import transformers
from helpers import tiny

from experiments.config import compose as configuration
from ntl import models
from ntl.data import model_inputs
from ntl.encodings import PretrainedTokenizer, TrainedBPE, build
from ntl.models.build import scratch_config
from ntl.settings import ModelSettings

FAMILIES = ("t5", "gpt2")


def larger():
    """An encoding of other tokens, some of them shared with tiny.encoding()'s under other ids."""
    return build("digits", TrainedBPE(["Sort these words, 1 2 3", "these words"] * 3, vocab_size=320))


def rows_by_token(model, using):
    weight = model.get_input_embeddings().weight
    return {token: weight[index] for token, index in using.tokenizer.get_vocab().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_different_vocabularies_share_what_they_have_in_common(family):
    one, other = tiny.encoding(), larger()
    a, b = tiny.model(family, 3, using=one), tiny.model(family, 3, using=other)
    assert len(one.tokenizer) != len(other.tokenizer)
    of_b = dict(b.named_parameters())
    for name, parameter in a.named_parameters():
        if parameter.shape == of_b[name].shape:
            assert torch.equal(parameter, of_b[name]), name
        else:
            assert parameter.shape[0] == len(one.tokenizer), name
    rows, others = rows_by_token(a, one), rows_by_token(b, other)
    common = set(rows) & set(others)
    ids, theirs = one.tokenizer.get_vocab(), other.tokenizer.get_vocab()
    assert len(common) >= 258 and any(ids[token] != theirs[token] for token in common)
    assert all(torch.equal(rows[token], others[token]) for token in common)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_deeper_model_shares_its_first_layers(family):
    depth = {"num_layers": 2, "num_decoder_layers": 2} if family == "t5" else {"n_layer": 2}
    short, deep = tiny.model(family, 3), tiny.model(family, 3, architecture=depth)
    scaled = "c_proj"  # GPT-2 draws these with a spread that depends on its depth
    shared = [name for name, _ in short.named_parameters() if scaled not in name]
    assert all(torch.equal(short.get_parameter(name), deep.get_parameter(name)) for name in shared)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_seed_decides_every_drawn_weight(family):
    a, same, other = (tiny.model(family, seed) for seed in (0, 0, 1))
    for name, parameter in a.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name)), name
        drawn = parameter.numel() > 1 and bool((parameter != parameter.flatten()[0]).any())
        assert torch.equal(parameter, other.get_parameter(name)) != drawn, name


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_parameters_start_out_alike(family):
    depth = {"num_layers": 2, "num_decoder_layers": 2} if family == "t5" else {"n_layer": 2}
    model = tiny.model(family, architecture=depth)
    drawn = [p.detach().flatten()[:8] for p in model.parameters() if len(set(p.flatten().tolist())) > 1]
    assert len({tuple(start.tolist()) for start in drawn}) == len(drawn)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_spread_is_the_librarys(family, tied):
    size = {"t5": {"d_model": 128, "d_ff": 192}, "gpt2": {"n_embd": 128}}[family] | {"tie_word_embeddings": tied}
    settings = tiny.settings(family, architecture=size)
    config = scratch_config(settings, tiny.encoding())
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    theirs = auto.from_config(config)
    ours = copy.deepcopy(theirs)
    models.initialise(ours, 0, tiny.encoding().tokenizer.get_vocab())
    for name, parameter in theirs.named_parameters():
        mine = ours.get_parameter(name)
        if not parameter.std() > 0:
            assert torch.equal(mine, parameter), name
            continue
        assert not torch.equal(mine, parameter), name
        error = 5 / (2 * parameter.numel()) ** 0.5  # five standard errors of a standard deviation
        assert abs(mine.std() / parameter.std() - 1) < 2 * error, name
        assert abs(mine.mean()) < 5 * parameter.std() / parameter.numel() ** 0.5, name


def test_drawing_weights_leaves_the_global_random_state():
    model = tiny.model("t5")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    models.initialise(model, 1, tiny.encoding().tokenizer.get_vocab())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_knows_its_special_tokens(family):
    model, tokenizer = tiny.model(family), tiny.encoding().tokenizer
    for config in (model.config, model.generation_config):
        assert config.pad_token_id == tokenizer.pad_token_id
        assert config.eos_token_id == tokenizer.eos_token_id
        if family == "t5":
            assert config.decoder_start_token_id == tokenizer.pad_token_id
    assert model.config.is_encoder_decoder == (family == "t5")


@pytest.fixture(params=FAMILIES)
def hub_folder(request, tmp_path):
    """A model and tokenizer as the library saves them; the output layer is wider than the tokenizer."""
    family, tokenizer = request.param, tiny.encoding("subword").tokenizer
    config = scratch_config(tiny.settings(family, architecture={"vocab_size": 384}), tiny.encoding("subword"))
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    torch.manual_seed(1)
    auto.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return family, tmp_path


def pretrained(family, path=None, **options):
    read = {"init": "pretrained", "tokenizer": "pretrained", "path": None if path is None else str(path)}
    return ModelSettings("saved", family, **(read | options))


@pytest.mark.parametrize("encoding", ["digits", "subword"])
def test_a_model_in_the_hubs_layout_loads_from_its_folder(hub_folder, encoding):
    family, path = hub_folder
    settings = pretrained(family, path)
    models.check(settings)
    using = build(encoding, models.tokenizer_source(settings, []))
    model = models.build(settings, using, seed=0)
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    for name, parameter in auto.from_pretrained(path).named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    assert using.numbers.vocab_size == model.config.vocab_size == 384 > len(using.tokenizer)
    assert models.describe(model, settings) == {"parameters": model.num_parameters(), "vocabulary": 384}
    # it trains and answers through the padded layer
    batch = tiny.layout(family, using=using).train_batch(list(tiny.dataset(using=using)))
    from ntl.losses import CrossEntropyWithNTL

    parts = CrossEntropyWithNTL(using.numbers)(model(**model_inputs(batch)), batch)
    assert parts.total.isfinite() and parts.parts["ntl"] > 0


def test_a_tokenizer_longer_than_the_published_one_widens_the_model(hub_folder):
    family, path = hub_folder
    added = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    added.add_tokens([f"<{n}>" for n in range(120)])
    added.save_pretrained(path)
    using = build("subword", PretrainedTokenizer(str(path)))
    model = models.build(pretrained(family, path), using, seed=0)
    assert len(using.tokenizer) > 384
    assert model.config.vocab_size == model.get_output_embeddings().weight.shape[0] == using.numbers.vocab_size
    assert model.config.vocab_size % 64 == 0


def test_the_fingerprint_follows_what_is_read(hub_folder):
    family, path = hub_folder
    weights, tokenizer = pretrained(family, path), pretrained(family, path, init="scratch")
    before = models.fingerprint(weights), models.fingerprint(tokenizer)
    assert before == (models.fingerprint(weights), models.fingerprint(tokenizer)) and None not in before
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    after = models.fingerprint(weights), models.fingerprint(tokenizer)
    assert after[0] != before[0] and after[1] == before[1]  # weights are not read when training from scratch
    text = (path / "tokenizer.json").read_text()
    (path / "tokenizer.json").write_text(text + "\n")
    assert models.fingerprint(tokenizer) != before[1]


def test_the_fingerprint_does_not_follow_the_folders_place(hub_folder, tmp_path_factory):
    import shutil

    family, path = hub_folder
    copied = shutil.copytree(path, tmp_path_factory.mktemp("elsewhere") / "model")
    assert models.fingerprint(pretrained(family, path)) == models.fingerprint(pretrained(family, copied))


def test_a_hub_model_has_no_fingerprint_without_its_commit(no_hub):
    with pytest.raises(models.NotAvailable, match="out of reach"):
        models.fingerprint(pretrained("t5", hub="nobody/has-this-model", revision="v2"))
    assert models.fingerprint(tiny.settings("t5")) is None


@pytest.fixture
def no_hub(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_weights_that_cannot_be_had_are_said_once(no_hub):
    settings = pretrained("t5", hub="nobody/has-this-model")
    with pytest.raises(ValueError) as error:
        models.build(settings, tiny.encoding(), 0)
    text = str(error.value)
    assert "nobody/has-this-model" in text and "model.path=" in text and "model.init=scratch" in text
    assert len(text.splitlines()) == 1


def test_a_tokenizer_that_cannot_be_had_is_said_once(no_hub):
    settings = pretrained("t5", hub="nobody/has-this-model", init="scratch")
    with pytest.raises(ValueError, match=r"nobody/has-this-model.*model\.path="):
        models.tokenizer_source(settings, []).load(split_digits=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"family": "bert"}, "expected one of t5, gpt2"),
        ({"init": "scrach"}, "expected scratch or pretrained"),
        ({"tokenizer": "word"}, "expected bpe or pretrained"),
        ({"loss_on": "question"}, "expected answer or all"),
        ({"init": "pretrained", "tokenizer": "pretrained"}, "model.hub=<id> or model.path=<folder>"),
        ({"init": "pretrained", "hub": "a/b"}, "model.tokenizer=pretrained"),
        ({"tokenizer": "pretrained", "path": "/no/such/folder"}, "is no folder"),
    ],
)
def test_settings_that_name_no_model_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        models.check(ModelSettings(**{"name": "m", "family": "t5", **wrong}))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("t5_small", 60.5),
        ("t5_base", 222.9),
        ("t5_3b", 2851.6),
        ("gpt2_small", 124.4),
        ("gpt2_medium", 354.8),
    ],
)
def test_published_models_have_their_published_sizes(name, millions):
    node = configuration.compose([f"model={name}"])["model"]
    node.pop("_target_")
    settings = ModelSettings(**node)
    auto = transformers.AutoModelForSeq2SeqLM if settings.family == "t5" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(scratch_config(settings, None))
    assert round(model.num_parameters() / 1e6, 1) == millions


@pytest.mark.parametrize("name", ["t5_nano", "gpt2_nano"])
def test_nano_models_have_about_a_million_parameters(name):
    node = configuration.compose([f"model={name}"])["model"]
    node.pop("_target_")
    settings = ModelSettings(**node)
    auto = transformers.AutoModelForSeq2SeqLM if settings.family == "t5" else transformers.AutoModelForCausalLM
    config = scratch_config(settings, None)
    config.vocab_size = settings.vocab_size
    with torch.device("meta"):
        assert 0.7e6 < auto.from_config(config).num_parameters() < 1.3e6
