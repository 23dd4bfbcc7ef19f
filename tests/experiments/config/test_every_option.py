"""Every option of the composed configurations, with values that it cannot have: one error names it, before work."""

import pytest

from experiments.config.compose import ConfigurationError, compose
from experiments.config.instantiate import instantiate

CHOICES = [
    ["dataset=arithmetic", "loss=ntl_was", "model=t5_nano", "logger=wandb"],
    ["dataset=multiplication", "loss=rt_ntl", "model=gpt2_nano", "logger=none"],
    ["dataset=rjokes", "loss=xval", "model=t5_nano", "logger=none"],
    ["dataset=gsm8k", "loss=dist2", "model=t5_small", "logger=none"],
    ["dataset=multirc", "loss=gce", "model=gpt2_medium", "logger=none"],
    ["dataset=multiplication", "loss=regression_head", "model=t5_nano", "logger=none"],
]
WRONG = ["many", "1.5", "-1", "0", "nan", "null", "[1]", "true", "''"]
# What of the above an option may well be.
FINE = {
    "many": "model.name model.hub model.revision model.lora.targets dataset.name dataset.folder dataset.hub "
    "dataset.revision dataset.url loss.name "
    "train.answer_groups logger.project logger.entity logger.group paths.data paths.outputs paths.results",
    "1.5": "model.lora.alpha loss.weight loss.sigma loss.squash loss.place_value loss.temperature "
    "train.learning_rate train.weight_decay train.max_grad_norm logger.timeout",
    "-1": "train.keep_best eval.untrained loss.encoding_options.lowest",
    "0": "model.lora.r model.lora.dropout model.architecture.dropout_rate model.architecture.resid_pdrop "
    "model.architecture.embd_pdrop model.architecture.attn_pdrop seed dataset.seed loss.weight loss.label_smoothing "
    "loss.encoding_options.lowest loss.encoding_options.highest loss.encoding_options.decimals train.warmup_steps "
    "train.weight_decay train.max_grad_norm train.gradient_norms_every train.workers train.answer_examples "
    "train.keep_best eval.margin eval.untrained",
    "null": "model.hub model.revision model.path model.question_tokens model.architecture.num_decoder_layers "
    "dataset.folder dataset.revision dataset.interpolation dataset.workers dataset.sha256 dataset.sha256.train "
    "dataset.sha256.dev dataset.sha256.test loss.sigma loss.squash loss.encoding_options.decimals train.eval_examples "
    "train.gradient_norms_every train.answer_groups train.threads eval.examples eval.answer_tokens "
    "logger.entity logger.group arm",
    "true": "dataset.both dataset.marks loss.reweigh loss.encoding_options.log "
    "loss.encoding_options.standardise train.keep_best eval.untrained retry force",
}
FINE = {value: set(keys.split()) for value, keys in FINE.items()}
ROW_LIMITS = {f"dataset.{split}_size" for split in ("train", "validation", "test")}  # rjokes: null for all


def leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}"


def nodes(node, prefix=""):
    yield prefix
    for key, value in node.items():
        if isinstance(value, dict):
            yield from nodes(value, f"{prefix}{key}.")


def cases():
    """Each option once, under the first choices that have it; those of a model, a data set or a loss once for each."""
    seen = set()
    for choices in CHOICES:
        for key in leaves(compose(choices)):
            owner = next((choice for choice in choices if choice.startswith(f"{key.partition('.')[0]}=")), "")
            if (owner, key) not in seen:
                seen.add((owner, key))
                yield pytest.param(choices, key, id=f"{owner}, {key}")


def refusal(overrides):
    with pytest.raises(ConfigurationError) as error:
        instantiate(compose(overrides))
    assert len(str(error.value).splitlines()) <= 2
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(("choices", "key"), cases())
def test_no_value_that_an_option_cannot_have_gets_through(choices, key):
    for value in WRONG:
        if key in FINE.get(value, ()) or (value == "null" and "dataset=rjokes" in choices and key in ROW_LIMITS):
            continue
        assert key.rpartition(".")[2] in refusal([*choices, f"{key}={value}"]), value


@pytest.mark.parametrize("choices", CHOICES[:3], ids=lambda choices: choices[1])
def test_no_unknown_option_gets_through(choices):
    for node in nodes(compose(choices)):
        if node != "train.schedule_options.":  # belongs to the schedule, which refuses it when it is made
            assert "zzz" in refusal([*choices, f"+{node}zzz=1"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["dataset.folder=3"], "dataset.folder: got 3, expected a text or null"),
        (["dataset.modules=1"], "dataset.modules: got 1, expected a list, each a text"),
        (["loss=xval", "loss.encoding_options.log=1"], "log: got 1, expected true or false"),
        (["logger=wandb", "logger.tags=many"], "logger.tags: got 'many', expected a list, each a text"),
        (["logger=wandb", "logger.timeout=0"], "timeout"),
        (["model.architecture.d_model=0"], "model.architecture.d_model: got 0, expected an integer of at least 1"),
        (["model.architecture.dropout_rate=nan"], "dropout_rate: got nan, expected a finite number of at least 0"),
        (["model.lora.alpha=many"], "model.lora.alpha: got 'many', expected a finite number above 0"),
        (["paths.data=[1]"], "paths.data: got [1], expected the path of a folder"),
        (["train=fsdp", "train.fsdp.version=1"], "train.fsdp.version: got 1, expected 2"),
        (
            ["train=fsdp", "train.loss_implementation=linear"],
            "train.loss_implementation: got 'linear' with train.fsdp, expected auto, plain or fused",
        ),
        (["retry=1"], "retry: got 1, expected true or false"),
        (["force=1"], "force: got 1, expected true or false"),
        (["seed=true"], "seed: got True, expected an integer"),
    ],
)
def test_what_was_got_and_expected_is_said(overrides, said):
    assert said in refusal(["logger=none", *overrides])
