"""A saved model answers as before, through this package and through the library alone."""

import pytest
import torch
import transformers
from helpers import tiny
from safetensors.torch import load_file, save_file

from ntl import predict as saving
from ntl.encodings import TrainedBPE, build
from ntl.evaluation import answer as evaluation
from ntl.settings import EvalSettings

FAMILIES = ("t5", "gpt2")
QUESTIONS = [{"question": row["question"], "answer": ""} for row in tiny.ROWS]


def trained(family, encoding="digits", loss_on="answer", seed=0, **options):
    using = tiny.encoding(encoding)
    model = tiny.model(family, seed, spread=0.7, using=using)
    settings = EvalSettings(**({"beams": 3} | options))
    return saving.Trained(model, using, tiny.layout(family, loss_on, using), settings, 9)


def texts(it):
    data = tiny.dataset(QUESTIONS, it.encoding)
    return evaluation.answer(it.model, it.encoding, it.layout, data, it.eval, it.max_new_tokens).texts


@pytest.mark.parametrize("encoding", ["digits", "subword"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_answers_the_same(family, encoding, tmp_path):
    before = trained(family, encoding, loss_on="all" if family == "gpt2" else "answer")
    saving.save(tmp_path / "model", before, "all")
    after = saving.load(tmp_path / "model")
    assert texts(after) == texts(before)
    assert after.max_new_tokens == 9 and after.eval.beams == 3
    assert after.encoding.name == encoding
    assert not after.model.training
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


KINDS = [*(("t5", name) for name in ("digits", "subword", "rt", "xval", "xval_mask", "scalar")), ("gpt2", "scalar")]


def fitted(family, name):
    """A trained model of any encoding, fitted to answers that are numbers."""
    rows = [row for row in tiny.ROWS if row["answer"][-1].isdigit()]
    using = build(name, TrainedBPE([row[part] for row in tiny.ROWS for part in row] * 2, vocab_size=300))
    using.fit({"train": rows})
    model = tiny.model(family, spread=0.7, using=using)
    return saving.Trained(model, using, tiny.layout(family, using=using), EvalSettings(), 9)


ASKED = [row["question"] for row in tiny.ROWS]


@pytest.mark.parametrize(("family", "name"), KINDS)
def test_a_saved_model_that_answers_otherwise_is_noticed(family, name, tmp_path):
    before, folder = fitted(family, name), tmp_path / "model"
    saving.save(folder, before, "answer")
    saving.check_saved(folder, before, ASKED)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    weights = {key: torch.randn(value.shape, generator=generator) for key, value in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(saving.SavedModelDiffers, match=r"answers .* expected .* as before it was saved"):
        saving.check_saved(folder, before, ASKED)


def test_long_questions_are_cut_as_they_were_for_the_scores(tmp_path):
    before = trained("t5", beams=1)._replace(question_tokens=2)
    saving.save(tmp_path / "model", before, "answer")
    saving.check_saved(tmp_path / "model", before, ASKED)
    cut = saving.ask(tmp_path / "model", ASKED)
    assert cut == saving.ask(tmp_path / "model", [before.encoding.decode(i) for i in cut_ids(before)])
    with pytest.raises(saving.SavedModelDiffers):
        saving.check_saved(tmp_path / "model", before._replace(question_tokens=None), ASKED)


def cut_ids(it):
    return [it.encoding.encode(question)["input_ids"][: it.question_tokens] for question in ASKED]


def test_decoding_is_kept(tmp_path):
    saving.save(tmp_path / "model", trained("t5", beams=1, decode="expected"), "answer")
    assert saving.load(tmp_path / "model").eval.decode == "expected"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_library_loads_it_without_this_package(family, tmp_path):
    before = trained(family)
    saving.save(tmp_path / "model", before, "answer")
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(tmp_path / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    for row in tiny.ROWS:
        expected = before.encoding.encode(row["question"])["input_ids"]
        assert tokenizer(row["question"], add_special_tokens=False)["input_ids"] == expected
    question = tiny.ROWS[3]["question"] + ("</s>" if family == "t5" else "\n")
    ids = tokenizer(question, return_tensors="pt", split_special_tokens=False, add_special_tokens=False)["input_ids"]
    prompt = before.layout.prompt_batch([before.encoding.encode(tiny.ROWS[3]["question"])])
    assert torch.equal(ids, prompt["input_ids"])
    output = model.generate(ids, max_new_tokens=9, num_beams=3, do_sample=False)[0]
    text = tokenizer.decode(output[1 if family == "t5" else ids.shape[1] :], skip_special_tokens=True)
    assert text == texts(before)[3]


def test_saving_again_replaces_what_was_there(tmp_path):
    folder = tmp_path / "model"
    saving.save(folder, trained("t5", seed=0), "answer")
    (folder / "left over").write_text("")
    second = trained("t5", seed=1)
    saving.save(folder, second, "answer")
    assert texts(saving.load(folder)) == texts(second)
    assert not (folder / "left over").exists()


def test_an_interrupted_save_leaves_the_old_one(tmp_path, monkeypatch):
    folder, first = tmp_path / "model", trained("t5", seed=0)
    saving.save(folder, first, "answer")
    second = trained("t5", seed=1)
    monkeypatch.setattr(type(second.encoding), "save", lambda self, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        saving.save(folder, second, "answer")
    monkeypatch.undo()
    assert texts(saving.load(folder)) == texts(first)
    saving.save(folder, second, "answer")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no trained model"):
        saving.load(tmp_path)
