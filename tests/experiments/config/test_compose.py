"""Every configuration composes and makes its parts; a slip is answered with the nearest names, at once."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.cpu import at_most
from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from experiments.config import compose as configuration
from experiments.config.compose import ConfigurationError, choices, compose
from experiments.config.instantiate import instantiate
from ntl.runs.identity import key, public

ROOT = Path(__file__).resolve().parents[3]
YAMLS = sorted(path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml"))
MODELS, LOSSES, DATASETS, EXPERIMENTS = (choices(group) for group in ("model", "loss", "dataset", "experiment"))


def parts_of(*overrides):
    return instantiate(compose([*overrides, "logger=none"]))


def test_the_groups_are_the_folders():
    assert {"t5_nano", "gpt2_nano", "t5_small", "gpt2_medium"} <= set(MODELS)
    assert {"ce", "ntl_was", "ntl_mse", "ntl_mae", "ntl_huber", "gce", "gce_ntl_was"} <= set(LOSSES)
    assert {"arithmetic", "mathematics", "multiplication"} <= set(DATASETS)
    assert {"ablation", "quickstart"} <= set(EXPERIMENTS)
    assert not any(name.startswith("_") for name in (*MODELS, *LOSSES, *DATASETS, *EXPERIMENTS))


@pytest.mark.parametrize("group", ["model", "dataset", "loss"])
def test_a_choice_is_named_as_its_file(group):
    for name in choices(group):
        needed = REQUIRED.get((group, name), [])
        assert compose([f"{group}={name}", *needed])[group]["name"] == name


# Options without a default, that the choice cannot do without.
EXAMPLES = ROOT / "data_prep" / "examples" / "custom"
REQUIRED: dict[tuple[str, str], list[str]] = {
    ("model", "custom"): ["model.hub=someone/custom"],
    ("dataset", "custom"): [f"dataset.train={EXAMPLES / 'train.jsonl'}", f"dataset.test={EXAMPLES / 'test.csv'}"],
}


def _target(node):
    from hydra.utils import get_class

    return get_class(node["_target_"])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_every_loss(model):
    """Groups are composed one by one, which is a tenth of the time: none of them depends on another."""
    import torch

    from ntl import encodings
    from ntl.numbers import NumberVocabulary

    digits = NumberVocabulary(torch.arange(10), torch.arange(10, dtype=torch.float64), 10)
    base = compose([f"model={model}", *REQUIRED.get(("model", model), []), "dataset=arithmetic", "logger=none"])
    for loss in LOSSES:
        config = base | {"loss": compose([f"loss={loss}"])["loss"]}
        encoding = encodings.available()[config["loss"]["encoding"]]
        if encoding.families is not None and base["model"]["family"] not in encoding.families:
            with pytest.raises(ConfigurationError):
                instantiate(config)
            continue
        if encoding.scratch_only and base["model"]["init"] == "pretrained":
            with pytest.raises(ConfigurationError, match=r"set model\.init=scratch"):
                instantiate(config)
            config["model"] = base["model"] | {"init": "scratch"}
        parts = instantiate(config)
        assert parts.model.name == model
        objective = parts.objective(numbers=digits)
        assert type(objective) is _target(config["loss"])
        assert objective.numbers is digits


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_dataset_is_made(dataset):
    made = parts_of(f"dataset={dataset}", *REQUIRED.get(("dataset", dataset), [])).dataset
    assert made.name == dataset


@pytest.mark.parametrize("group", ["train", "eval", "logger"])
def test_every_choice_of_the_other_groups_is_made(group):
    for name in choices(group):
        instantiate(compose([f"{group}={name}"]))


def weights_of(name):
    """What an experiment or a scale needs where converted weights are not at hand."""
    return ["model.path=null"] if "pretrained" in name else []


@pytest.mark.parametrize("name", choices("scale"))
def test_every_scale_is_made(name):
    config = compose([f"scale={name}", "logger=none", *weights_of(name)])
    assert config["dataset"]["name"] == name.rpartition("/")[2]
    instantiate(config)


# Their arms are made from others', which are tested one by one.
MANY = [name for name in EXPERIMENTS if name.startswith(("gpu/", "paper/"))]


@pytest.mark.parametrize(
    ("name", "some"),
    [(name, slice(None)) for name in EXPERIMENTS if name not in MANY]
    + [(name, slice(1)) for name in MANY]
    + [pytest.param(name, slice(None), marks=pytest.mark.slow) for name in MANY],
)
def test_every_arm_of_every_experiment_can_be_run(name, some):
    experiment = configuration.load_experiment(name, weights_of(name))
    assert experiment.name == name
    assert experiment.seeds == sorted(set(experiment.seeds))
    if not experiment.arms:
        with pytest.raises(ConfigurationError, match="is computed and trains nothing: python -m experiments tables"):
            configuration.compose_all(["-m", f"experiment={name}"])
    seen = {}
    for arm in list(experiment.arms)[some]:
        config = configuration.run_config(experiment, arm, experiment.seeds[-1])
        assert config["seed"] == experiment.seeds[-1] and config["arm"] == arm and config["experiment"] == name
        instantiate({**config, "logger": {"_target_": "ntl.runs.tracking.NoTracker"}})
        from ntl.runs.identity import canonical

        same = seen.setdefault(str(canonical(config)), arm)
        assert same == arm, f"the arms {same} and {arm} are one run"


def test_no_yaml_is_left_out():
    """Every file below conf is a choice that a test above composes, a base of one, or the root."""
    for path in YAMLS:
        group, name = (
            path.parts[0],
            path.with_suffix("").relative_to(path.parts[0]).as_posix() if path.parts[1:] else "",
        )
        if not path.parts[1:]:
            assert path.name == "config.yaml"
        elif not path.name.startswith("_") and group != "hydra":
            assert name in choices(group)


def test_the_defaults_are_what_the_settings_say():
    from ntl.settings import EvalSettings, TrainSettings

    parts = parts_of()
    assert parts.train == TrainSettings()
    assert parts.eval == EvalSettings()


def test_arms_override_the_defaults_and_the_caller_overrides_the_arms():
    arm = ["experiment=ablation", "arm=ntl_was@2.0"]
    assert compose(["experiment=ablation", "arm=ce"])["loss"]["name"] == "ce"
    config = compose(arm)
    assert config["loss"]["name"] == "ntl_was" and config["loss"]["weight"] == 2.0
    assert compose([*arm, "loss.weight=0.7"])["loss"]["weight"] == 0.7
    assert compose([*arm, "seed=3", "train.steps=500"])["train"]["steps"] == 500
    subword = compose(["experiment=ablation", "arm=ntl_was@0.3/subword"])["loss"]
    assert subword["encoding"] == "subword" and subword["weight"] == 0.3


@pytest.mark.parametrize("name", MANY)
def test_at_another_scale_an_experiment_differs_in_scale_more_arms_and_seeds_alone(name):
    stated = yaml.safe_load((ROOT / "conf" / "experiment" / f"{name}.yaml").read_text())
    folder, _, source = name.partition("/")
    inherited, scale, own = stated.pop("defaults")
    assert inherited == f"/experiment/{source}" and own == "_self_"
    assert scale["override /scale"].startswith(f"{folder}/")
    assert set(stated) <= {"experiment", "arms", "seeds", "arm_seeds"}
    there, here = (configuration.load_experiment(one) for one in (source, name))
    for arm, overrides in there.arms.items():
        assert arm not in stated.get("arms", {})
        assert here.arms[arm] == [o.replace("scale=cpu/", f"scale={folder}/") for o in overrides]
    assert list(here.arms) == [*there.arms, *stated.get("arms", {})]
    rest = compose([f"experiment={source}", f"scale={scale['override /scale']}"])
    assert compose([f"experiment={name}"]) == rest | {"experiment": name}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("pretrained/")])
def test_an_experiment_on_pretrained_weights_has_arms_of_its_source(name):
    arms = configuration.load_experiment(name.rpartition("/")[2]).arms
    ours = configuration.load_experiment(name)
    assert ours.arms and all(arms[arm] == overrides for arm, overrides in ours.arms.items())
    config = configuration.run_config(ours, "ce", 0)
    assert config["model"]["path"] == f"{config['paths']['data']}/models/smollm2_135m"
    assert config["eval"]["examples"] <= 512 and config["model"]["lora"]["r"] == 16


def test_weights_that_have_to_be_made_first_are_named_with_their_command(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        parts_of("scale=pretrained/rjokes", f"paths.data={tmp_path}")
    folder = tmp_path / "models" / "smollm2_135m"
    assert f"'{folder}' is no folder; make it by `python -m ntl.models.smollm2 {folder}`" in str(error.value)


@pytest.mark.parametrize(
    ("first", "second", "arms"),
    [
        ("tokenization", "mathematics", {"ce": "ce", "ntl_was@0.3/subword": "ntl_was@0.3/subword"}),
        ("successors", "ablation", {"ce": "ce", "ntl_was@0.3": "ntl_was@0.3"}),
        ("successors", "rjokes", {"rjokes/ce": "ce", "rjokes/ntl_was@2.0": "ntl_was@2.0"}),
        ("gpu/successors", "gpu/rjokes", {"rjokes/ce": "ce"}),
        ("paper/successors", "paper/ablation", {"ntl_was@0.3": "ntl_was@0.3"}),
    ],
)
def test_experiments_share_the_runs_that_they_have_in_common(first, second, arms):

    one, other = configuration.load_experiment(first), configuration.load_experiment(second)
    for ours, theirs in arms.items():
        assert key(configuration.run_config(one, ours, 0)) == key(configuration.run_config(other, theirs, 0))


def test_arms_may_have_seeds_of_their_own():
    from experiments.config.compose import unplanned

    experiment = configuration.load_experiment("mathematics")
    assert experiment.seeds_of["ce/subword"] == list(range(8)) and experiment.seeds_of["rt"] == list(range(5))
    job = ["experiment=mathematics", "planned_only=true"]
    assert unplanned([*job, "arm=ce/subword", "seed=7"]) is None
    assert unplanned([*job, "arm=rt", "seed=4"]) is None
    assert unplanned([*job, "arm=rt", "seed=5"]) == "arm rt: skip, seed 5 is not planned; seed=5 runs it"
    assert unplanned(["experiment=mathematics", "arm=rt", "seed=5"]) is None  # asked for by name
    sweep = ["-m", "experiment=mathematics"]
    assert "planned_only=true" in configuration.for_hydra(sweep)
    assert "planned_only=true" not in configuration.for_hydra([*sweep, "seed=5"])
    for wrong, said in (("[{arms: [c], seeds: [0]}]", "'c'"), ("[0]", "expected a list of entries such as")):
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            configuration.load_experiment("mathematics", [f"arm_seeds={wrong}"])


def test_a_run_knows_nothing_of_the_other_arms():
    config = compose(["experiment=ablation", "arm=ce"])
    assert "arms" not in config and "seeds" not in config


def test_composing_leaves_no_trace():
    before = compose(["loss=ntl_was"])
    before["loss"]["weight"] = 99
    before["model"]["architecture"].clear()
    assert compose(["loss=ntl_was"])["loss"]["weight"] == 0.3
    assert compose(["loss=ntl_was"])["model"]["architecture"]


@pytest.mark.parametrize(
    ("arm", "options"),
    [(["arm=ntl_was@2.0"], ["loss.weight=0.7"]), (["-m", "arm=ntl_was@2.0,ntl_mse@0.3"], ["loss.weight=0.7"])],
)
def test_an_option_of_an_arms_loss_can_be_given(arm, options):
    """Hydra composes the command line itself, and knows nothing of arms."""
    line = configuration.for_hydra(["experiment=ablation", *arm, *options])
    words = [word for word in line if not word.startswith(("-", "arm="))]
    with initialize_config_dir(str(configuration.CONF), version_base="1.3"):
        config = hydra_compose("config", overrides=words)
    assert config.loss.weight == 0.7
    assert config.loss.name == ("ce" if "-m" in arm else "ntl_was")
    job = compose([*words, "arm=ntl_was@2.0"])  # as a job of the sweep does
    assert job == compose(["experiment=ablation", "arm=ntl_was@2.0", *options])


def test_what_names_no_arm_is_left_to_hydra_as_it_is():
    for line in (
        ["loss=ntl_was", "loss.weight=0.7"],
        ["--cfg", "job", "-p", "loss"],
        ["-m", "experiment=ablation", "seed=0"],
    ):
        assert configuration.for_hydra(line) == line


def test_overrides_of_an_experiment_reach_its_arms():
    experiment = configuration.load_experiment("ablation", ["train.steps=500"])
    assert configuration.run_config(experiment, "ce", 1)["train"]["steps"] == 500


def shown(value):
    return " ".join(value) if isinstance(value, list) else ""


SLIPS = [
    (["los=ce"], "unknown key 'los'; nearest: loss"),
    (["loss=ntl_wass"], "unknown loss 'ntl_wass'; nearest: ntl_was"),
    (["model=t5_nan"], "unknown model 't5_nan'; nearest: t5_nano"),
    (["dataset=arithmetics"], "unknown dataset 'arithmetics'; nearest: arithmetic"),
    (["logger=zzzzzz"], "unknown logger 'zzzzzz'; valid: none, wandb"),
    (["train.step=3"], "unknown key 'train.step' of train=default; nearest: train.steps"),
    (["loss=ntl_was", "loss.wieght=3"], "unknown key 'loss.wieght' of loss=ntl_was; nearest: loss.weight"),
    (["loss.wieght=3"], "unknown key 'loss.wieght' of loss=ce; loss.weight is an option of loss=del, "),
    (
        ["experiment=ablation", "arm=ce", "loss.weight=3"],
        "unknown key 'loss.weight' of loss=ce; loss.weight is an option of loss=",
    ),
    (["dataset.digits=3"], "of dataset=arithmetic; dataset.digits is an option of dataset=multiplication"),
    (["loss.zzz=3"], "unknown key 'loss.zzz' of loss=ce; valid: loss.encoding, loss.label_smoothing"),
    (
        ["model.architecture.d_modell=3"],
        "unknown key 'model.architecture.d_modell' of model=t5_nano; nearest: model.architecture.d_model",
    ),
    (["dataset.train_sise=3"], "of dataset=arithmetic; nearest: dataset.train_size"),
    (["experiment=ablatoin"], "unknown experiment 'ablatoin'; nearest: ablation"),
    (
        ["experiment=ablation", "arm=ntl_was@0.4"],
        "unknown arm 'ntl_was@0.4' of experiment 'ablation'; nearest: ntl_was@0",
    ),
    (["arm=ce"], "without an experiment"),
    (["train.steps=many"], "train.steps: got 'many', expected an integer"),
    (["train.learning_rate=fast"], "train.learning_rate: got 'fast', expected a finite number"),
    (["train.eval_examples=[1]"], "train.eval_examples: got [1], expected an integer of at least 1 or null"),
    (["train.fsdp=3"], "train.fsdp: got 3, expected a mapping"),
    (["seed"], "cannot read the override 'seed'; expected key=value"),
    (["loss.weight=[1"], "cannot read the override 'loss.weight=[1'"),
]


@pytest.mark.parametrize(
    ("overrides", "said"), SLIPS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_slip_is_answered_with_the_nearest_names(overrides, said):
    with pytest.raises(ConfigurationError) as error:
        compose(overrides)
    text = str(error.value)
    assert said in text
    assert len(text.splitlines()) <= 2
    assert "omegaconf" not in text.lower() and "full_key" not in text


def test_a_key_of_ones_own_is_added_where_that_makes_sense():
    with pytest.raises(ConfigurationError, match=re.escape("write +model.architecture.feed_forward_proj=gated-gelu")):
        compose(["model.architecture.feed_forward_proj=gated-gelu"])
    config = compose(["+model.architecture.feed_forward_proj=gated-gelu"])
    assert config["model"]["architecture"]["feed_forward_proj"] == "gated-gelu"


IMPOSSIBLE = [
    (["loss=ntl_was", "loss.weight=nan"], "weight"),
    (["loss=ntl_was", "loss.weight=-1"], "weight"),
    (["loss=gce", "loss.sigma=0"], "sigma"),
    (["loss=ntl_was", "loss.kind=wass"], "kind"),
    (["loss.encoding=digit"], "cannot use the encoding 'digit'; it accepts digits, subword"),
    (["loss.encoding=subword", "eval.decode=expected", "eval.beams=1"], "as loss.encoding=digits has them"),
    (["train.steps=0"], "train.steps: got 0"),
    (["train.learning_rate=-1"], "train.learning_rate: got -1"),
    (["eval.beams=0"], "eval.beams: got 0"),
    (["model.hub=null", "model=t5_small"], "model.hub=<id> or model.path=<folder>"),
    (["model=t5_small", "model.path=/no/such/folder"], "'/no/such/folder' is no folder"),
    (["dataset=multiplication", "dataset.digits=0"], "digits: got 0"),
    (["dataset.source=internet"], "dataset.source: got 'internet', expected one of generator, download, local"),
    (["dataset=custom"], "dataset.train: got no file, expected one (.jsonl, .csv, .tsv, .parquet)"),
    (["dataset.source=local"], "folder=<path"),
    (["seed=-1"], "seed"),
    (["+loss.beta=3"], "unknown key 'loss.beta' of CrossEntropy; valid: encoding, encoding_options, label_"),
    (["+loss.sigmma=3"], "unknown key 'loss.sigmma' of CrossEntropy; nearest: sigma"),
    (["loss=ntl_mse", "loss.squash=9"], "got squash=9 with kind='mse', expected kind='was'"),
    (["+train.momentum=3"], "momentum"),
    (["model.vocab_size=10"], "model.vocab_size"),
    (["model=gpt2_nano", "model.architecture.n_head=3"], "model.architecture"),
    (["+model.architecture.n_layers_typo=3"], "n_layers_typo"),
]


@pytest.mark.parametrize(
    ("overrides", "said"), IMPOSSIBLE, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_cannot_be_run_is_refused_before_any_work(overrides, said):
    with pytest.raises(ConfigurationError) as error:
        parts_of(*overrides)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


class TestCommandLines:
    def test_one_run(self):
        (config,) = configuration.compose_all(["loss=ntl_was", "seed=3"])
        assert config["loss"]["name"] == "ntl_was" and config["seed"] == 3

    def test_a_sweep_names_every_arm(self):
        configs = configuration.compose_all(["-m", "experiment=ablation"])
        experiment = configuration.load_experiment("ablation")
        assert [config["arm"] for config in configs][: len(experiment.arms)] == list(experiment.arms)
        assert {config["seed"] for config in configs} == set(experiment.seeds)

    def test_a_sweep_over_some_arms(self):
        configs = configuration.compose_all(["-m", "experiment=ablation", "arm=ce,ntl_was@0.3", "seed=0,1"])
        assert [(config["arm"], config["seed"]) for config in configs] == [("ce", 0), ("ntl_was@0.3", 0), ("ce", 1)]

    def test_one_arm_without_a_sweep(self):
        (config,) = configuration.compose_all(["experiment=ablation", "arm=ce"])
        assert config["arm"] == "ce"

    def test_an_experiment_without_a_sweep_says_how(self):
        with pytest.raises(ConfigurationError, match="add -m to run them all, or arm="):
            configuration.compose_all(["experiment=ablation"])

    def test_a_slip_in_a_swept_arm(self):
        with pytest.raises(ConfigurationError, match="nearest: ce"):
            configuration.compose_all(["-m", "experiment=ablation", "arm=ce,cee"])

    def test_every_value_of_a_swept_key_is_checked(self):
        with pytest.raises(ConfigurationError, match="nearest: ntl_was"):
            configuration.compose_all(["-m", "loss=ce,ntl_wass"])
        configs = configuration.compose_all(["-m", "loss=ce,ntl_was", "train.steps=500,1000"])
        found = [(config["loss"]["name"], config["train"]["steps"]) for config in configs]
        assert found == [("ce", 500), ("ntl_was", 500), ("ce", 1000)]

    def test_keys_that_only_the_arms_have_can_be_swept(self):
        configs = configuration.compose_all(["-m", "experiment=ablation", "arm=ntl_was@0.3", "loss.weight=0.1,0.2"])
        assert [config["loss"]["weight"] for config in configs] == [0.1, 0.2]
        with pytest.raises(ConfigurationError, match=r"unknown key 'loss\.weight'"):
            configuration.compose_all(["-m", "experiment=ablation", "arm=ce", "loss.weight=0.1,0.2"])

    def test_several_values_without_a_sweep(self):
        with pytest.raises(ConfigurationError, match="add -m"):
            configuration.compose_all(["loss=ce,ntl_was"])


def answer(*arguments):
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    with at_most(5):
        done = subprocess.run(
            [sys.executable, "run.py", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
        )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    said = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert "omegaconf" in imported
    assert not {"torch", "transformers", "pandas", "wandb"} & imported
    return done.returncode, done.stdout, said


@pytest.mark.parametrize("arguments", [["--help"], ["experiment=ablation", "--help"]], ids=" ".join)
def test_help_answers_at_once(arguments):
    code, said, _ = answer(*arguments)
    assert code == 0
    assert "python run.py -m experiment=ablation" in said and "ntl_was" in said


PREDICT = 'predict comes first: python run.py predict run=a "What is 3 + 4?"'
WORDS = [
    (["run=a", "predict", "2 + 2?"], f"got 'run=a' in a command that trains; to ask a trained model, {PREDICT}"),
    (["-m", "predict", "run=a"], PREDICT),
    (["--run=a"], PREDICT),
    (["--run"], 'python run.py predict run=<id or folder> "What is 3 + 4?"'),
    (["--predict"], "got '--predict' in a command that trains"),
    (["--lr=3"], "got '--lr=3', expected options as key=value without dashes, such as lr=3; python run.py --help"),
    (["loss=ce", "--mult"], "got '--mult', expected options as key=value"),
]


@pytest.mark.parametrize(("arguments", "said"), WORDS, ids=shown)
def test_words_that_only_look_like_options_are_answered(arguments, said):
    with pytest.raises(ConfigurationError) as error:
        configuration.check_words(arguments)
    assert said in str(error.value)


@pytest.mark.parametrize("words", ["-m loss=ce,ntl_was", "--help", "--cfg job", "--info=all", "-c=job loss=ce"])
def test_hydras_own_options_pass(words):
    configuration.check_words(words.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["los=ce"],
        ["-m", "experiment=ablation", "train.step=3"],
        ["loss=ntl_was", "loss.wieght=1"],
        ["loss=ntl_was", "loss.weight=much"],
        ["loss=ntl_was", "loss.squash=9", "loss.sigma=1"],
        ["loss=xval", "loss.encoding_options.positons=1"],
        ["loss=rt", "loss.encoding_options.lowest=1"],
        ["dataset=rjokes", "dataset.train_size=0"],
        ["predict"],
        ["predict", "--run=a", "1"],
        ["--run"],
    ],
    ids=" ".join,
)
def test_a_slip_is_answered_at_once(arguments):
    code, said, error = answer(*arguments)
    assert code == 1
    assert said == "" and error.startswith("error: ") and "Traceback" not in error


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A machine where jobs can be submitted."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "sbatch").touch(mode=0o755)
    return tmp_path / "sbatch"


def test_slurm_needs_a_machine_that_submits_jobs(sbatch):
    configuration.check_launcher(["-m", "loss=ce", "hydra/launcher=slurm"])
    sbatch.unlink()
    configuration.check_launcher(["-m", "loss=ce", "hydra/launcher=joblib"])
    with pytest.raises(ConfigurationError, match=r"got a launcher for SLURM, and there is no sbatch on this machine"):
        configuration.check_launcher(["-m", "loss=ce", "hydra/launcher=slurm"])


def test_a_job_must_not_be_stopped_as_it_starts(sbatch):
    limits = ["hydra.launcher.timeout_min=5", "hydra.launcher.signal_delay_s=300"]
    with pytest.raises(ConfigurationError, match=r"signal_delay_s: got 300 seconds before .*timeout_min=5 minutes"):
        configuration.check_launcher(["-m", "hydra/launcher=slurm", *limits])


def composed_by_hydra(name, monkeypatch):
    """The arms of an experiment as Hydra composes them, each on its own."""
    with monkeypatch.context() as patch:
        patch.setattr(configuration, "_with_overrides", lambda base, overrides: None)
        return {arm: compose([f"experiment={name}", f"arm={arm}"]) for arm in configuration.load_experiment(name).arms}


@pytest.mark.parametrize("name", ["ablation", "tokenization", "calibration/arithmetic"])
def test_arms_are_composed_as_hydra_does(name, monkeypatch, tmp_path):
    monkeypatch.setattr(configuration, "COMPOSED", tmp_path)
    configuration._loaded.cache_clear()
    experiment = configuration.load_experiment(name)
    expected = composed_by_hydra(name, monkeypatch)
    for _ in ("made", "read from its file"):
        assert {arm: configuration.run_config(experiment, arm, 0) for arm in experiment.arms} == expected
        configuration._loaded.cache_clear()
    assert len(list(tmp_path.rglob("*.json"))) == 1


@pytest.mark.slow
def test_the_arms_of_every_experiment_are_composed_as_hydra_does(monkeypatch, tmp_path):
    monkeypatch.setattr(configuration, "COMPOSED", tmp_path)
    configuration._loaded.cache_clear()
    compared = 0
    for name in EXPERIMENTS:
        experiment = configuration.load_experiment(name)
        for arm, expected in composed_by_hydra(name, monkeypatch).items():
            assert configuration.run_config(experiment, arm, 0) == expected, (name, arm)
            compared += 1
    assert compared > 150


def test_a_changed_yaml_is_composed_again(monkeypatch, tmp_path):
    conf = tmp_path / "conf"
    shutil.copytree(configuration.CONF, conf)
    monkeypatch.setattr(configuration, "CONF", conf)
    monkeypatch.setattr(configuration, "COMPOSED", tmp_path / "cache")
    caches = (configuration._loaded, configuration._sources, configuration._composed_with_choices)
    caches += (configuration._plain_group,)

    def steps():
        for cached in caches:  # as in another process
            cached.cache_clear()
        return configuration.run_config(configuration.load_experiment("ablation"), "ce", 0)["train"]["steps"]

    assert steps() == 1800
    yaml = conf / "experiment" / "ablation.yaml"
    yaml.write_text(yaml.read_text() + "train:\n  steps: 900\n")
    assert steps() == 900
    assert len(list((tmp_path / "cache").iterdir())) == 1  # what the old files gave is gone
    for cached in caches:
        cached.cache_clear()


class TestEffectiveValues:
    """A value that a run does not use as it is given is replaced by the one that is used, or does not count."""

    @pytest.mark.parametrize(
        ("steps", "given", "used"),
        [
            (1800, 450, 450),
            (1800, 500, 450),
            (1801, 450, 1801),
            (100, 450, 100),
            (7, 2, 1),
            (6, 4, 3),
            (2_500_000, 24_000, 25_000),
        ],
    )
    def test_validations_divide_the_steps(self, steps, given, used, caplog):
        caplog.set_level("INFO")
        config = configuration.compose([f"train.steps={steps}", f"train.eval_every={given}"])
        assert config["train"]["eval_every"] == used
        assert key(config) == key(configuration.compose([f"train.steps={steps}", f"train.eval_every={used}"]))
        assert (f"train.eval_every: got {given}, {used} is used" in caplog.text) == (given != used)

    @pytest.mark.parametrize("schedule", ["constant", "reduce_lr_on_plateau", "greedy"])
    def test_a_schedule_without_warm_up_has_none(self, schedule, caplog):
        caplog.set_level("INFO")
        config = configuration.compose([f"train.schedule={schedule}"])
        assert config["train"]["warmup_steps"] == 0 and f"{schedule} has no warm-up" in caplog.text
        assert configuration.compose(["train.schedule=constant_with_warmup"])["train"]["warmup_steps"] == 200

    @pytest.mark.parametrize(
        ("given", "plain"),
        [
            (["model=t5_small", "model.architecture.dropout_rate=0.3"], ["model=t5_small"]),
            (["model=t5_small", "model.vocab_size=999"], ["model=t5_small"]),
            (["model.revision=v2", "model.hub=a/b"], []),
            (["model.loss_on=all"], []),
            (["model.lora.alpha=3"], []),
        ],
    )
    def test_options_of_a_model_that_are_not_used_name_no_other_run(self, given, plain, caplog):
        caplog.set_level("INFO")
        one, other = (configuration.compose(overrides) for overrides in (given, plain))
        assert key(one) == key(other) and public(one) == public(other)
        name = given[-1].partition("=")[0].removesuffix(".dropout_rate").removesuffix(".alpha")
        assert f"{name} is not used: " in caplog.text

    @pytest.mark.parametrize(
        "given",
        [
            ["model=gpt2_nano", "model.loss_on=all"],
            ["model=t5_small", "model.init=scratch", "model.architecture.dropout_rate=0.3"],
            ["model=t5_small", "model.revision=v2"],
            ["model=custom", "model.name=a/b", "model.lora.r=4"],
            ["model.vocab_size=600"],
        ],
    )
    def test_options_of_a_model_that_are_used_name_another(self, given):
        assert key(configuration.compose(given)) != key(configuration.compose(given[:-1]))
