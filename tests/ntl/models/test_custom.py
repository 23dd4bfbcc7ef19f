"""Any causal or sequence-to-sequence model: checkpoints of other architectures go the whole way of a run."""

import json
import shutil

import pytest
import torch
import transformers
from helpers import checkpoints, tiny
from safetensors.torch import load_file, save_file

import run
from experiments.config.compose import ConfigurationError, compose
from experiments.config.instantiate import instantiate
from ntl import models
from ntl import predict as saving
from ntl.data import layout_for, model_inputs
from ntl.encodings import PretrainedTokenizer, build
from ntl.losses import CrossEntropyWithNTL
from ntl.numbers import IGNORE_INDEX
from ntl.settings import LoraSettings, ModelSettings, with_source

WRITERS = ("qwen2", "llama", "llama2", "t5", "bart")
LORA = "model.lora={r: 4, alpha: 8}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each checkpoint."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, make in checkpoints.MAKE.items():
        make(root / name)
    return {name: root / name for name in checkpoints.MAKE}


def settings(path, **options):
    read = {"init": "pretrained", "tokenizer": "pretrained", "path": str(path)}
    return ModelSettings(path.name, **({"family": "auto"} | read | options))


def load(path, encoding="digits", **options):
    its = settings(path, **options)
    models.check(its)
    using = build(encoding, models.tokenizer_source(its, []))
    model = models.build(its, using, seed=0)
    return model, using, layout_for(model.config.is_encoder_decoder, using)


def auto_class(name):
    return transformers.AutoModelForSeq2SeqLM if name in ("t5", "bart") else transformers.AutoModelForCausalLM


@pytest.mark.parametrize("name", WRITERS)
def test_digits_are_kept_apart_and_nothing_else_changes(name, folders):
    own = transformers.PreTrainedTokenizerFast.from_pretrained(folders[name])
    model, using, _ = load(folders[name])
    assert using.numbers.tokens == tuple(sorted("0123456789", key=using.tokenizer.get_vocab().get))
    assert using.numbers.vocab_size == model.config.vocab_size
    for text in ("What is 123 + 45?", "no number", "1234567"):
        ids = using.encode(text)["input_ids"]
        assert using.decode(ids) == text
        pieces = using.tokenizer.convert_ids_to_tokens(ids)
        assert sum(piece in "0123456789" for piece in pieces) == sum(char in "0123456789" for char in text)
    assert using.encode("What is")["input_ids"] == own("What is", add_special_tokens=False)["input_ids"]
    merged = build("subword", PretrainedTokenizer(str(folders[name])))
    assert merged.encode("123 + 45")["input_ids"] == own("123 + 45", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", WRITERS)
def test_texts_begin_and_end_as_the_tokenizer_has_it(name, folders):
    _, using, layout = load(folders[name])
    own = using.tokenizer
    begin = [] if own.bos_token is None else [own.bos_token_id]
    question, answer = (using.encode(text)["input_ids"] for text in ("2 + 2", "4"))
    item = ({"input_ids": question}, {"input_ids": answer})
    batch = layout.train_batch([item])
    labels = [label for label in batch["labels"][0].tolist() if label != IGNORE_INDEX]
    assert labels == [*answer, own.eos_token_id]
    if name in ("t5", "bart"):
        start = {"t5": own.pad_token_id, "bart": own.eos_token_id}[name]
        assert batch["input_ids"][0].tolist() == [*begin, *question, own.eos_token_id]
        assert batch["decoder_input_ids"][0].tolist() == [start, *answer]
    else:
        line = using.encode("\n")["input_ids"]
        assert batch["input_ids"][0].tolist() == [*begin, *question, *line, *answer]
        assert layout.prompt_batch([item[0]])["input_ids"][0].tolist() == [*begin, *question, *line]
        assert layout.length(item) == batch["input_ids"].shape[1] + 1
    assert own.bos_token_id != own.eos_token_id
    assert own.pad_token_id is not None


@pytest.mark.parametrize("name", WRITERS)
def test_a_question_is_answered_alike_alone_and_padded(name, folders):
    model, using, layout = load(folders[name])
    questions = [using.encode(text) for text in ("2", "What is 31 + 4? Compute 124", "7 + 1")]

    def generate(batch):
        return [given.ids for given in using.generate(model, layout.prompt_batch(batch), max_new_tokens=6)]

    assert generate(questions) == [generate([question])[0] for question in questions]
    # as the library answers a text that it has encoded itself
    if name in ("llama", "t5"):
        own = transformers.PreTrainedTokenizerFast.from_pretrained(folders[name])
        ids = own("no 2" if name == "t5" else "no 2\n", return_tensors="pt")["input_ids"]
        output = auto_class(name).from_pretrained(folders[name]).generate(ids, max_new_tokens=6, do_sample=False)[0]
        expected = output[1 if name == "t5" else ids.shape[1] :].tolist()
        ours = generate([using.encode("no 2")])[0]
        assert ours == expected[: len(ours)]


@pytest.mark.parametrize("name", WRITERS)
def test_a_hand_shifted_loss_is_the_librarys(name, folders):
    """Labels aligned by the layout give the cross-entropy that the library's own labels give."""
    model, using, layout = load(folders[name])
    model.eval()
    batch = layout.train_batch(list(tiny.dataset(using=using)))
    ours = CrossEntropyWithNTL(using.numbers)(model(**model_inputs(batch)), batch).parts
    if name in ("t5", "bart"):
        theirs = model(**model_inputs(batch), labels=batch["labels"]).loss
    else:
        labels = torch.cat([torch.full_like(batch["labels"][:, :1], IGNORE_INDEX), batch["labels"]], 1)[:, :-1]
        last = batch["labels"][:, -1] != IGNORE_INDEX
        assert not bool(last.all())  # the longest row's end token has no position in the library's shift
        logits = model(**model_inputs(batch)).logits
        theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        shifted = model(**model_inputs(batch), labels=labels).loss
        mine = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, :-1].flatten())
        torch.testing.assert_close(shifted, mine)
    torch.testing.assert_close(ours["ce"], theirs.detach())
    assert ours["ntl"] > 0


ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(12) for b in range(3)]


def run_config(folder, root, *overrides):
    """The configuration of a short run on sums, and the folder of its questions."""
    root.mkdir(exist_ok=True)
    for name, rows in (("train", ROWS[:-6]), ("test", ROWS[-6:])):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return compose(
        [
            "model=custom",
            f"model.name={folder}",
            "dataset=custom",
            f"dataset.train={root / 'train.jsonl'}",
            f"dataset.test={root / 'test.jsonl'}",
            "loss=ntl_was",
            "train.steps=6",
            "train.eval_every=3",
            "train.batch_size=4",
            "train.warmup_steps=1",
            "train.learning_rate=0.003",
            "train.device=cpu",
            "eval.examples=4",
            "logger=none",
            *(f"paths.{name}={root / name}" for name in ("data", "outputs", "results")),
            *overrides,
        ]
    )


def record(root):
    (path,) = (root / "outputs").rglob("record.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("lora", [(), (LORA, "train.loss_implementation=linear")], ids=["whole", "lora"])
@pytest.mark.parametrize("name", ["qwen2", "llama", "t5"])
def test_a_run_from_a_folder(name, lora, folders, tmp_path):
    config = run_config(folders[name], tmp_path, *lora)
    run.run(config)
    made = record(tmp_path)
    assert made["status"] == "finished"
    assert made["config"]["model"]["name"] == name and made["id"].startswith(f"custom-{name}-ntl_was-s0-")
    assert str(folders[name]) not in json.dumps(made)
    assert (
        made["metrics"]["trained"]["test"]["all"]["perplexity"]
        != made["metrics"]["untrained"]["test"]["all"]["perplexity"]
    )
    assert ("trained" in made["model"]) == bool(lora)
    if lora:
        assert 0 < made["model"]["trained"] < made["model"]["parameters"] / 2

    # The model that is left answers as recorded, and is a plain model to the library.
    (folder,) = (tmp_path / "outputs").glob("runs/*/*/model")
    trained = saving.load(folder)
    model = auto_class(name).from_pretrained(folder)
    assert "lora" not in " ".join(name for name, _ in model.named_parameters())
    published = auto_class(name).from_pretrained(folders[name])
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, published.get_parameter(key))}
    assert any("q_proj" in key or ".q." in key for key in changed)
    assert any("embed_tokens" in key or "shared" in key for key in changed) == (not lora)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row in ROWS[:4]:
        ids = trained.encoding.encode(row["question"])["input_ids"]
        assert tokenizer(row["question"], add_special_tokens=False)["input_ids"] == ids
    if name == "qwen2":
        assert tokenizer.chat_template == checkpoints.CHAT


def test_a_run_whose_saved_model_answers_otherwise_fails(folders, tmp_path, monkeypatch):
    save = saving.save

    def damage(folder, *rest):
        save(folder, *rest)
        path = folder / "model.safetensors"
        weights = {name: torch.randn_like(value) for name, value in load_file(path).items()}
        save_file(weights, path, metadata={"format": "pt"})

    monkeypatch.setattr(saving, "save", damage)
    with pytest.raises(saving.SavedModelDiffers):
        run.run(run_config(folders["llama"], tmp_path, LORA))
    made = record(tmp_path)
    assert made["status"] == "failed" and made["reason"]["type"] == "SavedModelDiffers"


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_regression_head_is_trained_whole_beside_adapters(name, folders, tmp_path):
    run.run(run_config(folders[name], tmp_path, LORA, "loss=regression_head"))
    made = record(tmp_path)
    scores = {state: made["metrics"][state]["test"]["all"] for state in ("untrained", "trained")}
    assert scores["trained"]["rmse"] != scores["untrained"]["rmse"]
    assert scores["trained"]["no_number"] == 0 and scores["trained"]["nll"] is scores["trained"]["digit_error"] is None
    (folder,) = (tmp_path / "outputs").glob("runs/*/*/model")
    trained = dict(saving.load(folder).model.named_parameters())
    before = dict(load(folders[name], encoding="scalar")[0].named_parameters())
    assert trained.keys() == before.keys()  # nothing of the adapters is left
    changed = {key for key, value in trained.items() if not torch.equal(value, before[key])}
    assert any(key.startswith("number_head.") for key in changed) and any(
        "q_proj" in key or ".q." in key for key in changed
    )
    assert not any("embed" in key or "shared" in key or "norm" in key for key in changed)


def test_an_interrupted_run_with_adapters_ends_as_if_it_had_not_been(folders, tmp_path, monkeypatch):
    from ntl.training.callbacks import Seal

    whole = run_config(folders["qwen2"], tmp_path / "whole", LORA)
    run.run(whole)
    halved = run_config(folders["qwen2"], tmp_path / "halved", LORA)
    seal = Seal.on_save

    def stop(self, args, state, control, **rest):
        seal(self, args, state, control, **rest)
        if state.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Seal, "on_save", stop)
        with pytest.raises(KeyboardInterrupt):
            run.run(halved)
    (checkpoint,) = (tmp_path / "halved").rglob("checkpoint-3")
    assert (checkpoint / "adapter_model.safetensors").exists() and not (checkpoint / "model.safetensors").exists()
    run.run(halved)
    weights = [
        {key: value.clone() for key, value in auto_class("qwen2").from_pretrained(folder).state_dict().items()}
        for folder in (next((tmp_path / part).glob("outputs/runs/*/*/model")) for part in ("whole", "halved"))
    ]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert record(tmp_path / "whole")["metrics"] == record(tmp_path / "halved")["metrics"]


def test_adapters_change_nothing_before_they_are_trained_and_are_drawn_from_the_seed(folders):
    plain, using, layout = load(folders["llama"])
    batch = model_inputs(layout.train_batch(list(tiny.dataset(using=using))))
    same = [load(folders["llama"], lora={"r": 2})[0] for _ in range(2)]
    with torch.no_grad():
        assert torch.equal(plain.eval()(**batch).logits, same[0].eval()(**batch).logits)
    drawn = [dict(model.named_parameters()) for model in same]
    assert all(torch.equal(value, drawn[1][key]) for key, value in drawn[0].items())
    trained = {key for key, value in drawn[0].items() if value.requires_grad}
    assert trained and all("lora_" in key for key in trained)


def test_the_same_architecture_from_scratch(folders):
    model, again = (load(folders["qwen2"], init="scratch", architecture={"num_hidden_layers": 1})[0] for _ in "ab")
    assert model.config.model_type == "qwen2" and model.config.num_hidden_layers == 1
    assert all(torch.equal(value, again.get_parameter(key)) for key, value in model.named_parameters())
    small = settings(folders["qwen2"], init="scratch", tokenizer="bpe")
    built = models.build(small, tiny.encoding(), 0)
    assert built.config.vocab_size == len(tiny.encoding().tokenizer) == built.get_output_embeddings().weight.shape[0]
    assert models.fingerprint(small) is not None


class TestSources:
    """`model.name` is a hub id or a folder; the run is named after its last part."""

    def node(self, *overrides):
        return compose(["model=custom", *overrides])["model"]

    def test_a_hub_id(self):
        node = self.node("model.name=Qwen/Qwen2.5-0.5B")
        assert (node["name"], node["hub"], node["path"]) == ("Qwen2.5_0.5B", "Qwen/Qwen2.5-0.5B", None)
        assert self.node("model.name=gpt2")["hub"] == "gpt2"
        assert self.node("model.hub=google/flan-t5-small")["name"] == "flan_t5_small"
        assert self.node("model.hub=google/flan-t5-small", "model.name=flan")["name"] == "flan"

    def test_a_folder(self, tmp_path, monkeypatch):
        folder = tmp_path / "my model, v2"
        folder.mkdir()
        node = self.node(f"model.name='{folder}'")
        assert (node["name"], node["hub"], node["path"]) == ("my_model_v2", None, str(folder))
        assert self.node(f"model.path='{folder}'")["name"] == "my_model_v2"
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine").mkdir()
        assert self.node("model.name=mine")["path"] == "mine"

    def test_the_place_of_a_folder_is_no_part_of_a_run(self, folders, tmp_path):
        from ntl.runs.identity import canonical

        copied = shutil.copytree(folders["llama"], tmp_path / "llama")
        configs = [compose(["model=custom", f"model.name={folder}"]) for folder in (folders["llama"], copied)]
        assert canonical(configs[0]) == canonical(configs[1])

    @pytest.mark.parametrize("name", ["/no/such/folder", "./none", "a/b/c"])
    def test_a_folder_that_is_not_there(self, name):
        with pytest.raises(ConfigurationError, match="is no folder; give a folder in the hub's layout, or a hub id"):
            self.node(f"model.name={name}")

    def test_other_models_keep_their_names(self):
        assert with_source({"family": "t5", "name": "a/b", "hub": None, "path": None})["name"] == "a/b"


def parts_of(*overrides):
    return instantiate(compose(["model=custom", "logger=none", *overrides]))


def test_what_is_no_writing_model_is_refused_before_any_work(folders):
    with pytest.raises(ConfigurationError, match=r"'bert'.*expected one that writes text"):
        parts_of(f"model.name={folders['bert']}")
    with pytest.raises(ConfigurationError, match=r"set model\.name=<hub id or folder>"):
        parts_of()
    (folders["bert"].parent / "empty").mkdir(exist_ok=True)
    with pytest.raises(ConfigurationError, match="could not be read from"):
        parts_of(f"model.name={folders['bert'].parent / 'empty'}")
    with pytest.raises(ValueError, match=r"got 't5' for .* type 'llama'"):
        models.build(settings(folders["llama"], family="t5"), tiny.encoding(), 0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.lora.r=-1"], "model.lora.r: got -1"),
        (["model.lora={r: 4, alpha: 0}"], "model.lora.alpha: got 0"),
        (["model.lora.r=4", "model.lora.dropout=1"], "model.lora.dropout: got 1"),
        (["model.lora.r=4", "model.lora.targets=[]"], "model.lora.targets: got []"),
        (["model.lora={rank: 3}"], "rank"),
        (["model.lora.rank=3"], "unknown key 'model.lora.rank'"),
        (["model.lora={r: 4, targets: [lm_head]}"], "which adapts lm_head"),
        (["model.lora={r: 4, targets: [q_proj, embed_tokens]}"], "shares its weight with lm_head, and merging"),
        (["model.lora={r: 4, targets: [quer]}"], "expected layers of this model (down_proj"),
        (["model.lora.r=4", "model.init=scratch"], "model.init=pretrained"),
        (["model.lora.r=4", "loss=rt"], "encoding 'rt', which adds tokens"),
        (["loss=xval"], "family 'auto'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_fit_no_model_are_refused_before_any_work(overrides, said, folders):
    with pytest.raises(ConfigurationError) as error:
        parts_of(f"model.name={folders['qwen2']}", *overrides)
    assert said in str(error.value)


def test_adapters_are_off_unless_a_rank_is_given(folders):
    name = f"model.name={folders['qwen2']}"
    assert parts_of(name).model.adapters is None
    assert parts_of(name, "model.lora.r=4").model.adapters == LoraSettings(r=4, alpha=32.0, targets="all-linear")
    from ntl.runs.identity import canonical

    assert "lora" not in canonical(compose(["model=custom", name]))["config"]["model"]


def test_a_head_of_its_own_can_be_adapted(folders, tmp_path):
    """FLAN-T5's is its own, though T5's configuration class says that all heads are tied."""
    untied = shutil.copytree(folders["t5"], tmp_path / "t5")
    path = untied / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
    save_file(weights, path, metadata={"format": "pt"})
    for folder in (folders["llama"], untied):
        config = run_config(folder, tmp_path / f"run {folder.name}", "model.lora={r: 4, targets: [lm_head]}")
        run.run(config)
        assert record(tmp_path / f"run {folder.name}")["status"] == "finished"
        (saved,) = (tmp_path / f"run {folder.name}" / "outputs").glob("runs/*/*/model")
        model, before = (auto_class(folder.name).from_pretrained(place) for place in (saved, folder))
        changed = [name for name, value in model.named_parameters() if not value.equal(before.get_parameter(name))]
        assert changed == ["lm_head.weight"]
    with pytest.raises(ValueError, match=r"which adapts lm_head.*shares its weight with"):
        load(folders["t5"], lora={"r": 2, "targets": ["lm_head"]})  # known from the weights alone


def test_layers_that_a_model_has_not_are_said(folders):
    with pytest.raises(ValueError, match=r"model\.lora\.targets: got \['quer'\].*q_proj"):
        load(folders["qwen2"], lora={"r": 2, "targets": ["quer"]})


def test_a_head_without_tokens_fits_other_architectures(folders):
    for name in ("qwen2", "llama"):
        using = build("scalar", PretrainedTokenizer(str(folders[name])))
        using.fit({"train": tiny.ROWS[:2]})
        model = models.build(settings(folders[name]), using, seed=0)
        layout = layout_for(False, using)
        given = using.generate(model, layout.prompt_batch([using.encode("2 + 2")]), max_new_tokens=5)
        assert float(given[0].text) == pytest.approx(float(given[0].text))
