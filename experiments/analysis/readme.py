"""Tables inside prose: a README names a generated file between two comments, and gets its sections copied there.

<!-- results/tables/quickstart.md -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"(<!-- (results/\S+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def refresh(readme: Path, root: Path) -> None:
    """Copy every table that `readme` names into it, without its notes; a table that does not exist is said to."""

    def fill(match: re.Match[str]) -> str:
        source = root / match[2]
        table = _sections(source.read_text()) if source.exists() else "The runs of this table are not published yet.\n"
        return f"{match[1]}\n{table}\n{match[3]}"

    text = readme.read_text()
    filled = _BLOCK.sub(fill, text)
    if filled != text:
        readme.write_text(filled)


def _sections(table: str) -> str:
    """The sections of a generated table, headings two levels deeper, title and notes left out."""
    body = table.split("\n## Notes", 1)[0].split("\n", 1)[1].strip()
    return re.sub(r"^##", "####", body, flags=re.MULTILINE) + "\n"
