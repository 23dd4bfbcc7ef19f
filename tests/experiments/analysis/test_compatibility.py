"""The compatibility document is up to date and says what encodings declare."""

from experiments.analysis.compatibility import DOCUMENT, answers, document, families_of, write


def test_the_document_is_up_to_date():
    remedy = "run python -m experiments.analysis.compatibility"
    assert DOCUMENT.read_text(encoding="utf-8") == document(), remedy


def test_writing_changes_no_byte(tmp_path):
    assert write(tmp_path / "copy.md").read_bytes() == DOCUMENT.read_bytes()


def test_limits_of_encodings_are_respected():
    assert families_of("ce", "gsm8k") == ["auto", "gpt2", "t5"]
    assert families_of("xval", "arithmetic") == ["t5"]
    assert families_of("regression_head", "gsm8k") == [] == families_of("regression_head", "multirc")
    assert answers("custom") == ("number", "text")
