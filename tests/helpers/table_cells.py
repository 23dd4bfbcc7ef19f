"""How the tests of tables find a number or a rendered row."""

from experiments.analysis.rendering import sections


def cell(numbers, row, metric="accuracy", split="interpolate", baseline=None, group="all"):
    found = numbers[
        (numbers["row"] == row)
        & (numbers["metric"] == metric)
        & (numbers["split"] == split)
        & (numbers["group"] == group)
        & (numbers["baseline"] == baseline if baseline else numbers["kind"] != "comparison")
    ]
    assert len(found) == 1
    return found.iloc[0]


def row(table, numbers, name, section=0):
    _, _, rows = sections(table, numbers)[section]
    (found,) = [cells for cells in rows if cells[0] == name]
    return found
