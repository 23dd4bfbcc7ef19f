"""Tables inside the README."""

from experiments.analysis.readme import refresh

TABLE = """# The ablation

## Interpolation

| arm | accuracy |

## Notes

* Made by a command.
"""


def test_a_table_is_copied_and_its_absence_said(tmp_path):
    block = "before\n<!-- results/tables/x.md -->\n{}<!-- end -->\nafter\n"
    readme, table = tmp_path / "README.md", tmp_path / "results" / "tables" / "x.md"
    readme.write_text(block.format(""))
    refresh(readme, tmp_path)
    assert readme.read_text() == block.format("\nThe runs of this table are not published yet.\n\n")
    table.parent.mkdir(parents=True)
    table.write_text(TABLE)
    refresh(readme, tmp_path)
    assert readme.read_text() == block.format("\n#### Interpolation\n\n| arm | accuracy |\n\n")
    table.unlink()
    refresh(readme, tmp_path)
    assert "not published yet" in readme.read_text() and "accuracy" not in readme.read_text()
