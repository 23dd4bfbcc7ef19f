"""What cannot be run is refused before any work, with the reason."""

import pytest

from experiments.config import compose as configuration
from experiments.config.compose import ConfigurationError, choices, compose
from experiments.config.instantiate import instantiate


def parts(*overrides):
    return instantiate(configuration.compose(["logger=none", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["loss=xval", "model=gpt2_nano"], "'xval' got a model of family 'gpt2', expected t5: .*built for T5"),
        (["loss=xval_mask", "model=gpt2_nano"], "'xval_mask' got a model of family 'gpt2', expected t5"),
        (["loss=xval_mask", "dataset=multirc"], "'xval_mask' got answers that are a 'text'"),
        (["loss=regression_head", "dataset=multirc"], "'scalar' got answers that are a 'text', expected num.*no text"),
        (["loss=ce", "loss.encoding=rt"], "loss 'ce' cannot use the encoding 'rt'; it accepts digits, subword"),
        (["loss=rt", "loss.encoding=digits"], "loss 'rt' cannot use the encoding 'digits'; it accepts rt"),
        (["loss=xval", "loss.encoding=subword"], "loss 'xval' cannot use .*accepts xval"),
        (["loss=regression_head", "loss.encoding=xval"], "accepts scalar"),
        (["loss=del", "loss.encoding=subword"], "accepts digits"),
        (["loss=ntl_was", "loss.encoding=digit"], "'digit'; it accepts digits, subword"),
        (["loss=rt", "eval.decode=expected", "eval.beams=1"], "'rt' got eval.decode 'expected', expected generate"),
        (["loss=ce", "loss.encoding=subword", "eval.decode=expected", "eval.beams=1"], "single digits"),
        (["loss=xval", "eval.beams=4"], "eval.beams: got 4, expected 1 with loss=xval: .* 'xval' answers greedily"),
        (["loss=regression_head", "eval=paper"], "eval.beams: got 4, expected 1 with loss=regression_head"),
        (["loss=rt", "loss.encoding_options.lowest=3"], "lowest: got 3"),
        (["loss=xval", "loss.encoding_options.significant=0"], "significant: got 0"),
        (["loss=xval", "loss.encoding_options.positions=0"], "positions: got 0"),
        (["loss=regression_head", "loss.encoding_options.decimals=-1"], "decimals: got -1"),
        (["loss=rt", "loss.encoding_options.depth=3"], "depth"),
        (["loss=dist2", "loss.temperature=0"], "temperature"),
        (["loss=ntl_mse", "loss.squash=2", "loss.encoding=subword"], "squash"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, reason):
    with pytest.raises(ConfigurationError, match=reason):
        parts(*overrides)


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (model, loss)
        for model in ("t5_nano", "gpt2_nano")
        for loss in configuration.choices("loss")
        if (model, loss)
        not in [("gpt2_nano", f"xval{form}") for form in ("", "_mask", "_mask_signed")]  # refused, see above
    ],
)
def test_everything_else_goes(model, loss):
    made = parts(f"loss={loss}", f"model={model}")
    assert made.encoding.func.name in made.objective.func.encodings


def test_options_reach_the_encoding():
    assert parts("loss=rt", "loss.encoding_options.lowest=-3").encoding.keywords == {"lowest": -3, "highest": 19}


def test_subword_with_squash():
    made = parts("loss=ntl_was", "loss.encoding=subword", "loss.squash=2")
    assert made.objective.keywords["squash"] == 2 and made.encoding.func.name == "subword"


def test_an_encoding_option_at_its_default_is_no_part_of_the_identity():
    from ntl.runs.identity import canonical

    config = configuration.compose(["loss=rt", "logger=none"])
    assert set(canonical(config)["config"]["loss"]["encoding_options"]) == {"class"}


@pytest.mark.parametrize("requested", ["linear", "fused"])
def test_an_implementation_that_a_loss_does_not_have_is_refused(requested):
    from ntl import losses

    for name in choices("loss"):
        config = compose([f"loss={name}", f"train.loss_implementation={requested}", "logger=none"])
        if getattr(losses, config["loss"]["_target_"].rpartition(".")[2]).fuses:
            instantiate(config)
        else:
            with pytest.raises(ConfigurationError, match=f"train.loss_implementation: got '{requested}' for "):
                instantiate(config)


def test_encodings_that_answer_in_a_way_of_their_own_say_whether_they_search():
    from ntl.encodings import Encoding, available

    for encoding in available().values():
        assert encoding.searches == (encoding._answers is Encoding._answers)
