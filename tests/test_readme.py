"""What the README shows must work as it stands there."""

import re
from pathlib import Path

from helpers import accumulated, tiny

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_loss_for_anyones_trainer_is_what_the_readme_says(tmp_path: Path) -> None:
    (example,) = [block for block in blocks("python") if "ObjectiveMixin" in block]
    using = accumulated.trainer("gpt2", tmp_path, exact=True)
    names = {"tokenizer": tiny.encoding().tokenizer, "args": using.args, "data": using.train_dataset}
    names["model"] = tiny.model("gpt2").train()
    exec(example, names)
    names["trainer"].data_collator = using.data_collator
    names["trainer"].train()
    assert names["trainer"].state.global_step == 1


def test_every_file_that_the_documents_link_to_exists() -> None:
    missing = []
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        missing += [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


def test_every_test_that_a_promise_names_is_there():
    text = (ROOT / "docs" / "promises.md").read_text()
    named, file = 0, ""
    for path, function in re.findall(r"`((?:[\w/]+\.py)?)(?:::(test_\w+))?`", text):
        file = path or file
        if path or function:
            named += 1
            content = (ROOT / "tests" / file).read_text()
            assert not function or f"def {function}(" in content, (file, function)
    assert named > 30
