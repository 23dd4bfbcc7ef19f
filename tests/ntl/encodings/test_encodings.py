"""Text → tokens → text, with the real T5 and GPT-2 tokenizers and with trained ones."""

import re
import shutil
from functools import cache

import pytest
import torch
from helpers.shared_data import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer, GPT2Tokenizer, T5Tokenizer

from ntl.encodings import LoadedTokenizer, PretrainedTokenizer, TrainedBPE, available, build
from ntl.encodings.digits import Digits

TEXTS = [f"What is {a} + {b * 111}?" for a in range(40) for b in range(10)] + [f"{a * 111}" for a in range(40)]
SOURCES = ["t5", "gpt2", "bpe", "bpe_marked"]
NAMES = ["digits", "subword"]
SENTENCE = "In 2024, x = -345.07*y + 12 costs 1000000."


@cache
def encoding(source, name):
    """Build an encoding once for all tests."""
    if source.startswith("bpe"):
        return build(name, TrainedBPE(TEXTS, vocab_size=400, marker=source == "bpe_marked"))
    return build(name, PretrainedTokenizer(str(shared(f"tokenizers/{source}"))))


EACH = pytest.mark.parametrize(("source", "name"), [(source, name) for source in SOURCES for name in NAMES])


def tokens(encoding, text):
    return encoding.tokenizer.convert_ids_to_tokens(encoding.encode(text)["input_ids"])


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("t5", "2024", "▁ 2 0 2 4"),
        ("t5", "In 2024", "▁In ▁ 2 0 2 4"),
        ("t5", "7", "▁ 7"),
        ("t5", "123.45 - 7?", "▁ 1 2 3 . 4 5 ▁ - ▁ 7 ?"),
        ("t5", "-10", "▁ - 1 0"),
        ("gpt2", " 345", "Ġ 3 4 5"),
        ("gpt2", "In 2024", "In Ġ 2 0 2 4"),
        ("gpt2", "x2y = 123.45", "x 2 y Ġ= Ġ 1 2 3 . 4 5"),
        ("gpt2", "3\n40", "3 Ċ 4 0"),
        ("bpe", "-10", "- 1 0"),
        ("bpe_marked", "2024", "Ġ 2 0 2 4"),  # as T5
        ("bpe_marked", "-10", "Ġ - 1 0"),
        ("bpe_marked", " 7", "Ġ Ġ 7"),
        ("bpe_marked", "", ""),
    ],
)
def test_digits_stand_alone_and_behind_t5s_marker(source, text, expected):
    assert tokens(encoding(source, "digits"), text) == expected.split()


@EACH
def test_digits_are_single_tokens_and_the_ten_numbers(source, name):
    each = encoding(source, name)
    spelt = tokens(each, SENTENCE)
    assert each.decode(each.encode(SENTENCE)["input_ids"]) == SENTENCE
    if each.name == "digits":
        assert all(not re.search("[0-9]", token) or re.fullmatch("[0-9]", token) for token in spelt)
        assert sorted(each.numbers.tokens) == list("0123456789")
        assert each.numbers.mask(torch.tensor(each.encode(SENTENCE)["input_ids"])).sum() == len("202434507121000000")
    else:
        assert any(len(re.findall("[0-9]", token)) > 1 for token in spelt)
        assert len(each.numbers) > 10


def test_digits_in_other_scripts_are_left_alone():
    subword, digits = encoding("gpt2", "subword"), encoding("gpt2", "digits")
    for text in ("²", "½", "٣٤", "５６", "Ⅷ"):
        assert tokens(digits, text) == tokens(subword, text)
        assert not digits.numbers.mask(torch.tensor(digits.encode(text)["input_ids"])).any()


def test_strict_number_rule_on_t5():
    numbers = encoding("t5", "subword").numbers
    spelt = {token.lstrip("▁") for token in numbers.tokens}
    assert all(re.fullmatch(r"[0-9]+(\.[0-9]+)?", token) for token in spelt)
    assert {"▁1920", "▁7", "7", "0"} <= set(numbers.tokens)
    assert "▁2018." in encoding("t5", "subword").tokenizer.get_vocab()
    assert len(numbers) < 705  # what float() takes


# Text of the kind that the mathematics data hold: ASCII, single blanks, no blank at either end.
def sentences(alphabet):
    word = st.text(alphabet, min_size=1, max_size=8)
    number = st.decimals(-(10**12), 10**12, places=3, allow_nan=False).map(str) | st.integers().map(str)
    return st.lists(word | number, min_size=1, max_size=8).map(" ".join)


ASCII = "".join(map(chr, range(33, 127)))
T5_ABSENT = "<{}\\^`~"


@settings(deadline=None)
@given(text=sentences(ASCII))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["gpt2", "bpe", "bpe_marked"])
def test_round_trip_of_mathematics(source, name, text):
    each = encoding(source, name)
    assert each.decode(each.encode(text)["input_ids"]) == text


@settings(deadline=None)
@given(text=sentences("".join(set(ASCII) - set(T5_ABSENT))))
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_of_mathematics_t5(name, text):
    each = encoding("t5", name)
    assert each.decode(each.encode(text)["input_ids"]) == text


@settings(deadline=None)
@given(text=st.text() | st.sampled_from(["<pad>", "7</s>8", "\n </s>"]))
@pytest.mark.parametrize("source", ["bpe", "bpe_marked"])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_of_any_text_trained(source, name, text):
    each = encoding(source, name)
    assert each.decode(each.encode(text)["input_ids"]) == text
    assert not set(each.encode(text)["input_ids"]) & {0, 1}


@settings(deadline=None)
@given(text=st.text().filter(lambda text: "<|endoftext|>" not in text))
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_of_any_text_gpt2(name, text):
    each = encoding("gpt2", name)
    assert each.decode(each.encode(text)["input_ids"]) == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [("3²", "32"), ("٣", ""), ("a  b\n c ", "a b c"), ("x<y", "xy"), ("½", "12"), ("５", "5"), ("", "")],
)
def test_what_t5_changes(name, text, expected):
    each = encoding("t5", name)
    assert each.decode(each.encode(text)["input_ids"]) == expected


@pytest.mark.parametrize("source", ["t5", "gpt2"])
def test_both_encodings_share_one_vocabulary(source):
    digits, subword = encoding(source, "digits"), encoding(source, "subword")
    assert digits.tokenizer.get_vocab() == subword.tokenizer.get_vocab()
    assert subword.decode(digits.encode(SENTENCE)["input_ids"]) == SENTENCE


@EACH
def test_saved_tokenizer_reloads_and_cuts_identically(source, name, tmp_path):
    each = encoding(source, name)
    each.save(tmp_path)
    # as a run's folder: the model's configuration, by which AutoTokenizer would choose the model's own class
    AutoConfig.for_model("gpt2" if source == "gpt2" else "t5").save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [SENTENCE, *TEXTS[:3], "²½٣ <extra_id_12> </s><pad>", " a\nb 7 "]:
        assert reloaded(text)["input_ids"] == each.tokenizer(text)["input_ids"]
        assert reloaded(text, add_special_tokens=False)["input_ids"] == each.encode(text)["input_ids"]
        assert reloaded.decode(each.encode(text)["input_ids"], skip_special_tokens=True) == each.decode(
            each.encode(text)["input_ids"]
        )
    assert reloaded.backend_tokenizer.to_str() == each.tokenizer.backend_tokenizer.to_str()
    assert (reloaded.pad_token_id, reloaded.eos_token_id) == (each.tokenizer.pad_token_id, each.tokenizer.eos_token_id)
    for model_type in ("t5", "qwen2"):  # for Qwen2, AutoTokenizer would take the model's own class
        AutoConfig.for_model(model_type).save_pretrained(tmp_path)
        again = build(each.name, PretrainedTokenizer(str(tmp_path)))
        assert again.encode(SENTENCE) == each.encode(SENTENCE)
    # and no path of the machine that saved it goes along
    assert not re.search(r"/\w", (tmp_path / "tokenizer_config.json").read_text().replace("</s>", ""))


@pytest.mark.parametrize(("cls", "source"), [(T5Tokenizer, "t5"), (GPT2Tokenizer, "gpt2")])
def test_callers_tokenizer_is_untouched(cls, source):
    tokenizer = cls.from_pretrained(shared(f"tokenizers/{source}"))
    tokenizer(SENTENCE, truncation=True, max_length=4)  # leaves a limit in the Rust object, which must not be inherited

    def state():
        attributes = {key: repr(value) for key, value in vars(tokenizer).items() if key != "_tokenizer"}
        return tokenizer.backend_tokenizer.to_str(), attributes, tokenizer.get_vocab(), len(tokenizer)

    before = state()
    digits = build("digits", LoadedTokenizer(tokenizer))
    assert len(digits.encode(SENTENCE)["input_ids"]) > 4
    digits.resize(len(tokenizer) + 28)
    assert state() == before
    assert (
        tokenizer(SENTENCE)["input_ids"] == cls.from_pretrained(shared(f"tokenizers/{source}"))(SENTENCE)["input_ids"]
    )
    assert tokenizer.pad_token == {"t5": "<pad>", "gpt2": None}[source]


def test_vocabulary_size_stays_and_gpt2_pads_with_its_end_token():
    t5, gpt2 = encoding("t5", "digits"), encoding("gpt2", "digits")
    assert (len(t5.tokenizer), len(gpt2.tokenizer)) == (32100, 50257)
    assert gpt2.tokenizer.pad_token_id == gpt2.tokenizer.eos_token_id == gpt2.pad_values["input_ids"] == 50256
    assert (t5.tokenizer.pad_token_id, t5.tokenizer.eos_token_id) == (0, 1)


def test_padded_output_layer():
    digits = encoding("bpe", "digits")
    width = len(digits.tokenizer)
    assert digits.numbers.vocab_size == width
    try:
        digits.resize(width + 60)
        assert digits.numbers.vocab_size == width + 60
        assert digits.decode([width + 59, *digits.encode("7")["input_ids"]]) == "7"
        with pytest.raises(ValueError, match="resize the model's embeddings"):
            digits.resize(width - 1)
    finally:
        digits.resize(width)


@pytest.mark.parametrize("split", [True, False], ids=NAMES)
def test_trained_tokenizer_is_the_same_whatever_the_order_and_threads(split, monkeypatch):
    trained = []
    for order, threads in [(TEXTS, "true"), (TEXTS[::-1], "true"), (sorted(TEXTS), "false")]:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
        source = TrainedBPE((text for text in order), vocab_size=380)
        trained += [source.load(split).backend_tokenizer.to_str(), source.load(split).backend_tokenizer.to_str()]
    assert len(set(trained)) == 1


def test_trained_tokenizer_vocabulary():
    digits, subword = encoding("bpe", "digits"), encoding("bpe", "subword")
    for each in (digits, subword):
        vocabulary = each.tokenizer.get_vocab()
        assert (vocabulary["<pad>"], vocabulary["</s>"]) == (0, 1)
        assert (each.tokenizer.pad_token_id, each.tokenizer.eos_token_id) == (0, 1)
        assert len(vocabulary) <= 400
    assert not any(re.search("[0-9]", token) and len(token) > 1 for token in digits.tokenizer.get_vocab())
    assert any(re.fullmatch("Ġ?[0-9]{2,}", token) for token in subword.tokenizer.get_vocab())
    assert "ĠWhat" in digits.tokenizer.get_vocab() or "What" in digits.tokenizer.get_vocab()


@pytest.mark.parametrize("marker", [False, True])
def test_trained_number_tokens_are_no_longer_than_t5s(marker):
    texts = [f"What is {a * 10**b} + 1000000?" for a in range(1, 90) for b in range(6)] * 3
    each = build("subword", TrainedBPE(texts, vocab_size=600, marker=marker))
    t5 = encoding("t5", "subword").numbers
    longest = max(len(f"{value:.0f}") for value in t5.values.tolist())
    assert max(len(re.findall("[0-9]", token)) for token in each.numbers.tokens) == longest == 4
    assert each.numbers.values.max() < 10**longest
    assert tokens(each, "1000000 + 1000000")[-3:] == ["Ġ+", "Ġ1000", "000"]


def test_an_answer_has_as_many_labels_as_t5s():
    t5, trained = encoding("t5", "digits"), encoding("bpe_marked", "digits")
    for text in ("7", "-7", "123", "-1234567", "0.25", "-10.5"):
        assert len(trained.encode(text)["input_ids"]) == len(t5.encode(text)["input_ids"]), text


def test_bad_training_is_refused():
    with pytest.raises(ValueError, match="vocab_size=257, expected at least 258"):
        TrainedBPE(TEXTS, 257)
    with pytest.raises(ValueError, match="no text to train"):
        TrainedBPE([], 300)
    assert len(TrainedBPE(["7"], 258).load(True)) == 258


def test_unknown_encoding_names_the_nearest():
    assert set(NAMES) <= set(available())
    assert available()["digits"] is Digits
    with pytest.raises(ValueError, match=r"got encoding 'digit', expected one of .*subword.*did you mean digits"):
        build("digit", TrainedBPE(TEXTS, 300))


class TestUnreadableSources:
    def test_hub_out_of_reach(self, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ValueError, match=r"'nobody/nothing' \(revision v1\) could not.*path=<folder>"):
            PretrainedTokenizer("nobody/nothing", revision="v1").load(False)

    @pytest.mark.parametrize("files", [[], ["config.json"], ["vocab.json"], ["tokenizer.json"]], ids=str)
    def test_folder_without_a_tokenizer(self, tmp_path, files):
        for name in files:
            (tmp_path / name).write_text("{}")
        with pytest.raises(
            ValueError, match=r"no tokenizer could be read.*expected tokenizer.json, spiece.model.*save_pretrained"
        ):
            PretrainedTokenizer(str(tmp_path)).load(True)

    def test_no_such_folder(self, tmp_path):
        with pytest.raises(ValueError, match="which is no folder"):
            PretrainedTokenizer(str(tmp_path / "missing")).load(True)
        with pytest.raises(ValueError, match="which is no folder"):
            PretrainedTokenizer("./missing").load(True)

    def test_half_a_spiece_model(self, tmp_path):
        whole = shared("tokenizers/t5/spiece.model").read_bytes()
        (tmp_path / "spiece.model").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=r"could be read from folder.*spiece\.model"):
            PretrainedTokenizer(str(tmp_path)).load(True)

    def test_a_tokenizer_without_an_end(self):
        tokenizer = TrainedBPE(TEXTS, 300).load(False)
        tokenizer.eos_token = None
        with pytest.raises(ValueError, match="without an end token"):
            LoadedTokenizer(tokenizer).load(True)

    def test_a_slow_tokenizer(self):
        with pytest.raises(ValueError, match="got a object, expected a tokenizer backed by"):
            LoadedTokenizer(object()).load(True)


def test_bare_tokenizer_json_is_enough(tmp_path):
    digits = encoding("gpt2", "digits")
    digits.save(tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "tokenizer.json", tmp_path / "bare")
    with pytest.raises(ValueError, match="without an end token"):
        PretrainedTokenizer(str(tmp_path / "bare")).load(True)
