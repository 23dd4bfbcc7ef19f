"""What the README shows must work as it stands there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_loss_for_anyones_trainer_is_what_the_readme_says() -> None:
    (example,) = [block for block in blocks("python") if "compute_loss_func" in block]
    imports = "\n".join(line for line in example.splitlines() if line.startswith("from"))
    namespace: dict = {}
    exec(imports, namespace)  # the names exist where the README imports them from
    assert {"CrossEntropyWithNTL", "NumberVocabulary"} <= namespace.keys()


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
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
