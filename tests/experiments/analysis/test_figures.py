"""A figure shows the numbers of its table, and is the same file whenever it is made."""

import numpy as np
import pytest
from helpers.made_records import TRAINED

from experiments.ablation import FIGURES, MAIN
from experiments.analysis.figures import LINES, draw, write
from experiments.analysis.frame import frame
from experiments.analysis.records import arm_runs, load


@pytest.fixture
def numbers(arms):
    return frame(MAIN, "ablation", arms)


def test_every_seed_is_a_dot_and_the_mean_has_its_deviation(numbers, ablation):
    axes = draw(FIGURES[0], numbers, "ablation").axes
    assert len(axes) == 4  # two splits, two metrics
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == list(ablation.arms)
    dots = {int(line.get_ydata()[0]): line.get_xdata() for line in axes[0].lines if len(line.get_xdata()) > 2}
    accuracy = [value for value, _ in TRAINED["ntl_was@0.3"]]
    np.testing.assert_allclose(dots[names.index("ntl_was@0.3")], accuracy)
    whiskers = {bars.lines[0].get_ydata()[0]: bars for bars in axes[0].containers}
    bar = whiskers[names.index("ntl_was@0.3")]
    (segment,) = bar.lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 0], np.mean(accuracy) + np.array([-1, 1]) * np.std(accuracy, ddof=1))


def test_constants_the_papers_values_and_missing_arms_show(numbers, ablation):
    ax = draw(FIGURES[0], numbers, "ablation").axes[0]
    assert len([line for line in ax.lines if list(line.get_ydata()) == [0, 1]]) == len(LINES)
    assert len({str(style) for _, style in LINES.values()}) == len(LINES)  # told apart without colour
    diamonds = {line.get_ydata()[0]: line.get_xdata()[0] for line in ax.lines if line.get_marker() == "D"}
    assert diamonds[list(ablation.arms).index("ntl_mae@0.3")] == 0.45
    assert ax.get_xlim()[0] < 0.05 < 0.52 < ax.get_xlim()[1]  # the best constant and the best arm
    missing = [text for text in ax.texts if text.get_text() == "missing"]
    assert len(missing) == len(ablation.arms) - len(TRAINED)


def test_an_empty_sweep_has_a_figure_too(tmp_path, ablation):
    nothing = frame(MAIN, "ablation", arm_runs(ablation, load(tmp_path)))
    assert len(draw(FIGURES[0], nothing, "ablation").axes[0].texts) == len(ablation.arms)


def test_writing_again_changes_no_byte(arms, tmp_path):
    first, second = (write(FIGURES[0], "ablation", arms, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["ablation.png", "ablation.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()
