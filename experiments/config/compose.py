"""From Hydra's yaml files to one checked, plain configuration per run.

`run.py`, `status` and the tables all read an experiment's arms here, so that they can never disagree. Nothing in this
module loads torch, so that a misspelt key is reported at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config import declared
from experiments.config.paths import ROOT, in_repository
from ntl.files import file_sha256, write_atomically
from ntl.options import check_node, options_of
from ntl.settings import ModelSettings, effective, unused, with_source
from ntl.text import did_you_mean, nearest

log = logging.getLogger(__name__)

CONF = ROOT / "conf"
COMPOSED = ROOT / "outputs" / "cache" / "configurations"
FREE = ("model.architecture.", "train.schedule_options.", "train.fsdp.")  # take keys that no yaml lists
DECLARED = ("model", "dataset", "loss", "train", "eval", "logger")  # groups whose options a class declares
EXPERIMENT = ("experiment", "arms", "seeds", "arm_seeds")  # keys that say what an experiment consists of
HYDRA_KEYS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
TARGETS = (
    *((group,) for group in DECLARED),
    ("loss", "encoding_options"),
)
PACKAGES = ("ntl.", "data_prep.")
SWEEPS = ("-m", "--multirun")
# Hydra's options that show something and start no run, as run.py --hydra-help lists them.
SHOWS = ("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info",
         "-sc", "--shell-completion")  # fmt: skip


class ConfigurationError(ValueError):
    """A configuration that cannot be run; its text says what was got, what was expected and what to do."""


@dataclass
class Experiment:
    """An experiment as its yaml declares it: arms with their overrides, in order, and the seeds of each."""

    name: str
    arms: dict[str, list[str]]
    seeds_of: dict[str, list[int]]  # by arm
    overrides: list[str] = field(default_factory=list)  # given on the command line, on top of the yaml

    @property
    def seeds(self) -> list[int]:
        """The seeds of any arm, in order."""
        return sorted({seed for seeds in self.seeds_of.values() for seed in seeds})


def register() -> None:
    """Make declared defaults and this suite's resolvers known to Hydra. Calling it twice is harmless."""
    declared.register()
    OmegaConf.register_new_resolver("arm_names", lambda arms: ",".join(arms) or "null", replace=True)
    OmegaConf.register_new_resolver("in_repository", in_repository, replace=True)
    OmegaConf.register_new_resolver("planned_seeds", _seeds_of_all, replace=True)
    OmegaConf.register_new_resolver("scale_of", lambda experiment: experiment.rpartition("/")[0] or "cpu", replace=True)


@cache
def choices(group: str) -> tuple[str, ...]:
    """The choices of a configuration group: the files of its folder, bases (leading underscore) left out."""
    folder = CONF / group
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return tuple(sorted(name for name in names if not name.rpartition("/")[2].startswith("_")))


def experiment_names() -> list[str]:
    """Names of all experiments, such as `ablation` or `paper/ablation`."""
    return list(choices("experiment"))


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose one run's configuration, the overrides of its arm included, as a plain dictionary.

    Args:
        overrides: Hydra overrides, e.g. `["experiment=ablation", "arm=ce", "seed=1"]`. Where an arm and the caller
            set the same key, the caller's value takes precedence.

    Raises:
        ConfigurationError: an unknown key, choice or arm, or a value of the wrong type.
    """
    overrides = list(overrides)
    arm, added = _arm_overrides(_parse(overrides))
    try:
        config = None
        if added and all(_key(override) in ("experiment", "arm") for override in overrides):
            config = _with_overrides([o for o in overrides if _key(o) != "arm"], [*added, f"arm={arm}"])
        config = config or _compose([*added, *overrides])
    except ConfigurationError:
        check_overrides([*added, *overrides])  # gives a better message, but takes as long again
        raise
    for key in ("arms", "seeds", "arm_seeds", "planned_only"):  # an experiment's, not the run's
        del config[key]
    try:
        config["model"] = with_source(config["model"])
        _check_targets(config)
        for group in DECLARED:
            check_node(config[group], group, also=("encoding", "encoding_options") if group == "loss" else ())
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return _with_effective(config)


def _with_effective(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the values that a run uses in place of those given, which the log says."""
    train = config["train"]
    if all(isinstance(train[name], int) and train[name] >= 1 for name in ("steps", "eval_every")):
        for name, (value, why) in effective(train).items():
            log.info("train.%s: got %s, %s is used: %s", name, train[name], value, why)
            train[name] = value
    defaults = options_of(ModelSettings)
    for name, why in unused(config["model"]).items():
        if config["model"][name] != defaults[name].default:
            log.info("model.%s is not used: %s", name, why)
    return config


def _check_targets(node: Any, *place: str) -> None:
    """Raise a ConfigurationError for a key that makes Hydra import or call something, but for a group's own class.

    That is one of this suite's: whoever adds one puts its file below one of `PACKAGES`.
    """
    for key, value in node.items() if isinstance(node, Mapping) else enumerate(node):
        here = (*place, str(key))
        if here[-1] in HYDRA_KEYS:
            if here[-1] != "_target_" or place not in TARGETS:
                raise ConfigurationError(f"{'.'.join(here)}: got {value!r}, expected no such key")
            if not str(value).startswith(PACKAGES):
                expected = " or ".join(package.rstrip(".") for package in PACKAGES)
                raise ConfigurationError(f"{'.'.join(here)}: got {value!r}, expected a class of {expected}")
        if isinstance(value, Mapping | list):
            _check_targets(value, *here)


def _arm_overrides(parsed: Sequence[Override]) -> tuple[str | None, list[str]]:
    """The arm that is chosen, and those of its overrides whose keys are not given themselves."""
    experiment = _compose_checked([o.input_line for o in parsed if _top(o) in ("experiment", "arms")])
    arm = next((o.value() for o in parsed if o.get_key_element() == "arm"), experiment["arm"])
    if arm is None:
        return None, []
    arms = experiment["arms"]
    if str(arm) not in arms:
        raise ConfigurationError(
            did_you_mean("arm", str(arm), arms, of=f"experiment '{experiment['experiment']}'")
            if arms
            else f"got arm={arm} without an experiment; name one, e.g. experiment=ablation"
        )
    given = {_key(o.input_line) for o in parsed}
    return arm, [override for override in arms[str(arm)] if _key(override) not in given]


def for_hydra(arguments: Sequence[str]) -> list[str]:
    """The command line that Hydra itself can compose, since it does not know of arms.

    The overrides of the chosen arm are added. In a sweep over arms, options that the default choices lack, such as
    `loss.weight`, are marked as additions (`++`); `compose_all` checks them for each arm.

    Raises:
        ConfigurationError: an unknown experiment, arm or choice.
    """
    parsed = _parse([a for a in arguments if "=" in a])  # others, such as --cfg job, are Hydra's own
    if not any(_top(o) in ("experiment", "arms") for o in parsed):
        return list(arguments)
    sweep = set(SWEEPS) & set(arguments)
    if sweep and not any(_top(o) in ("seed", "planned_only") for o in parsed):
        arguments = [*arguments, "planned_only=true"]
    if not any(o.is_sweep_override() and _top(o) in ("experiment", "arm") for o in parsed):
        added = _arm_overrides(parsed)[1]
        if added:
            return [*added, *arguments]
    known = {*_keys(_compose_checked(check_choices(parsed))), *_groups()}
    keys = {o.input_line: o.get_key_element() for o in parsed}
    new = {line for line, key in keys.items() if key.partition(".")[0] in _groups() and key not in known}
    return [f"++{argument}" if argument in new else argument for argument in arguments]


def unplanned(overrides: Sequence[str]) -> str | None:
    """Why a job of a sweep over all planned seeds is not to be run: its seed is planned for other arms alone."""
    parsed = _parse(overrides)
    given = {o.get_key_element(): o.value() for o in parsed}
    if not given.get("planned_only"):
        return None
    config = _compose_checked([o.input_line for o in parsed if _top(o) in EXPERIMENT])
    arm, seed = str(given.get("arm")), given.get("seed")
    planned = _seeds_of_arms(config).get(arm, [seed])
    return None if seed in planned else f"arm {arm}: skip, seed {seed} is not planned; seed={seed} runs it"


def _seeds_of_arms(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """The seeds of each arm of a composed experiment.

    Raises:
        ConfigurationError: an entry of `arm_seeds` that is not as it should be, or names an unknown arm.
    """
    seeds = {arm: list(config["seeds"]) for arm in config["arms"]}
    for entry in config["arm_seeds"]:
        if not isinstance(entry, Mapping) or set(entry) != {"arms", "seeds"}:
            raise ConfigurationError(
                f"arm_seeds: got {entry!r}, expected a list of entries such as {{arms: [ce], seeds: [0, 1]}}"
            )
        for arm in entry["arms"]:
            if arm not in seeds:
                raise ConfigurationError("arm_seeds: " + did_you_mean("arm", str(arm), seeds))
            seeds[arm] = list(entry["seeds"])
    return seeds


def _seeds_of_all(seeds: Sequence[int], arm_seeds: Sequence[Mapping[str, Any]]) -> str:
    """The seeds that any arm has, as a sweep's list."""
    return ",".join(map(str, sorted({*seeds, *(seed for entry in arm_seeds for seed in entry["seeds"])})))


def load_experiment(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment's arms and seeds.

    Raises:
        ConfigurationError: an unknown experiment (with the nearest names).
    """
    loaded = _loaded(name, tuple(overrides), str(CONF))
    arms = {arm: list(items) for arm, items in loaded["arms"].items()}
    return Experiment(name=name, arms=arms, seeds_of=loaded["seeds"], overrides=list(overrides))


def run_config(experiment: Experiment, arm: str, seed: int) -> dict[str, Any]:
    """The configuration of one arm and seed of an experiment."""
    loaded = _loaded(experiment.name, tuple(experiment.overrides), str(CONF))
    return {**loaded["configs"][arm], "seed": seed}


@cache
def _loaded(name: str, overrides: tuple[str, ...], conf: str) -> dict[str, Any]:
    """Arms, seeds and each arm's configuration of an experiment, kept in a file from one command to the next."""
    folder = COMPOSED / _sources(conf)
    path = folder / f"{hashlib.sha256(json.dumps([name, overrides]).encode()).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text(encoding="utf-8"))
    config = _compose_checked([f"experiment={name}", *overrides])
    configs = {arm: compose([f"experiment={name}", f"arm={arm}", *overrides]) for arm in config["arms"]}
    loaded = {"arms": config["arms"], "seeds": _seeds_of_arms(config), "configs": configs}
    with contextlib.suppress(OSError):  # a cache: where it cannot be written, the next command composes again
        if not folder.exists() and COMPOSED.exists():  # what older sources gave is of no use any more
            for old in COMPOSED.iterdir():
                shutil.rmtree(old, ignore_errors=True)
        write_atomically(path, json.dumps(loaded).encode())
    return loaded


@cache
def _sources(conf: str) -> str:
    """A hash of all that a composed configuration depends on: the yaml files, declared options, and this code."""
    folders = ("experiments/config", "data_prep", "ntl/losses", "ntl/encodings", "ntl/runs")
    code = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    files = [*sorted(Path(conf).rglob("*.yaml")), *code, ROOT / "ntl/options.py", ROOT / "ntl/settings.py"]
    versions = [version(package) for package in ("hydra-core", "omegaconf")]
    content = [*versions, conf, *(f"{file}: {file_sha256(file)}" for file in files)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def _with_overrides(base: Sequence[str], overrides: Sequence[str]) -> dict[str, Any] | None:
    """Compose `base` once and apply `overrides` to a copy of the result; equal to composing both, and ten times faster.

    Returns None where the result could differ from Hydra's own: for anything but `key=value` and `group=choice`, for
    unknown keys, and for a group of which `base` changes more than the choice.
    """
    composed, chosen = _composed_with_choices(tuple(base), str(CONF))
    config = composed.copy()
    parsed = _parse(overrides)
    selections = [o for o in parsed if o.get_key_element() in chosen]
    values = [o for o in parsed if o not in selections]
    for override in selections:
        group, choice = override.get_key_element(), override.value()
        plain = _plain_group(group, chosen[group], str(CONF))
        if not isinstance(choice, str) or "@" in group or composed[group] != plain:
            return None
        OmegaConf.set_struct(config, False)
        config[group] = _plain_group(group, choice, str(CONF))
    OmegaConf.set_struct(config, True)
    for override in values:
        key = override.get_key_element()
        if key[0] in "+~" or "@" in key or override.is_sweep_override() or override.is_delete():
            return None
        try:
            OmegaConf.update(config, key, override.value(), merge=True)
        except OmegaConfBaseException:
            return None  # Hydra's own composition raises the error with its message
    return OmegaConf.to_container(config, resolve=True)


@cache
def _composed_with_choices(overrides: tuple[str, ...], conf: str) -> tuple[DictConfig, dict[str, str]]:
    """A composed configuration, and the choice of each of its groups."""
    with _own_hydra(conf):
        config = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    chosen = {group: choice for group, choice in config.hydra.runtime.choices.items() if not group.startswith("hydra/")}
    chosen = {group: choice for group, choice in chosen.items() if choice is not None and group in config}
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    OmegaConf.set_struct(config, True)
    return config, chosen


@cache
def _plain_group(group: str, choice: str, conf: str) -> DictConfig:
    """The node of a group's choice, without any experiment."""
    with _own_hydra(conf):
        return hydra_compose("config", overrides=[f"{group}={choice}"])[group]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise a ConfigurationError with the nearest valid names for the first unknown key or choice."""
    parsed = _parse(overrides)
    groups = _groups()
    selections = check_choices(parsed)
    known = set(_keys(_compose_checked(selections)))
    for override in parsed:
        key = override.get_key_element()
        if key[0] in "+~" or key.partition("@")[0] in groups or key.startswith("hydra"):
            continue
        if key not in known:
            hint = f"; to add a key of your own, write +{override.input_line}" if key.startswith(FREE) else ""
            raise ConfigurationError(_unknown_key(key, known | groups, selections) + hint)


def _unknown_key(key: str, known: Iterable[str], selections: Sequence[str]) -> str:
    """One sentence for an unknown key: the nearest of its own group, and which choice of the group has it."""
    group, _, option = key.partition(".")
    own = [name.partition(".")[2] for name in known if name.startswith(f"{group}.") and not name.endswith("_target_")]
    if not own or group not in _groups():
        return did_you_mean("key", key, known)
    with _own_hydra(str(CONF)):
        hydra = hydra_compose("config", overrides=list(selections), return_hydra_config=True).hydra
    chosen = hydra.runtime.choices[group]
    having: dict[str, list[str]] = {}  # options of the group's other choices -> these choices
    for choice in choices(group):
        for name in _options(group, choice) - set(own):
            having.setdefault(name, []).append(choice)
    best = nearest(option, [*own, *having], count=1)
    if best and best[0] in having:
        others = f"{group}={', '.join(having[best[0]])}"
        return f"unknown key '{key}' of {group}={chosen}; {group}.{best[0]} is an option of {others}"
    near = [f"{group}.{name}" for name in nearest(option, own)]
    hint = f"nearest: {', '.join(near)}" if near else f"valid: {', '.join(sorted(f'{group}.{name}' for name in own))}"
    return f"unknown key '{key}' of {group}={chosen}; {hint}"


def _options(group: str, choice: str) -> set[str]:
    """The dotted keys that the yaml of a choice lists, those of its bases included."""
    path = CONF / group / f"{choice}.yaml"
    content = OmegaConf.to_container(declared.complete(OmegaConf.load(path)))
    bases = [base for base in content.pop("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return set(_keys(content)).union(*(_options(group, base) for base in bases)) - {"_target_"}


def check_choices(parsed: Sequence[Override]) -> list[str]:
    """Return those overrides that choose from a group; raise a ConfigurationError for the first unknown choice."""
    groups = _groups()
    selections = []
    for override in parsed:
        key = override.get_key_element().lstrip("+~").partition("@")[0]
        if key in groups:
            for choice in _values(override):
                if choice not in choices(key):
                    raise ConfigurationError(did_you_mean(key, choice, choices(key)))
            if not override.is_sweep_override() and not override.is_delete():
                selections.append(override.input_line)
    return selections


def check_words(arguments: Sequence[str]) -> None:
    """Raise a ConfigurationError for words that only look like options of run.py, or stand in the wrong place."""
    for argument in arguments:
        word, _, value = argument.lstrip("-").partition("=")
        if word in ("predict", "run"):
            asked = next((a.lstrip("-") for a in arguments if a.lstrip("-").startswith("run=")), "run=<id or folder>")
            raise ConfigurationError(
                f"got '{argument}' in a command that trains; to ask a trained model, predict comes first: "
                f'python run.py predict {asked} "What is 3 + 4?"'
            )
        if argument.startswith("-") and argument.partition("=")[0] not in SWEEPS + SHOWS:
            raise ConfigurationError(
                f"got '{argument}', expected options as key=value without dashes, such as {word}={value or '…'}; "
                "python run.py --help lists them"
            )


def compose_all(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Compose the configurations that a command line names: each arm of a sweep, and each value of other swept keys.

    Keys are varied one at a time, the others at their first value: what is wrong with a value shows in any combination.

    Raises:
        ConfigurationError: for the first that cannot be composed.
    """
    parsed = _parse([a for a in arguments if not a.startswith("-")])
    check_choices(parsed)
    swept = {o.get_key_element(): list(_values(o)) for o in parsed if o.is_sweep_override()}
    fixed = [o.input_line for o in parsed if not o.is_sweep_override()]
    chosen = [o for o in parsed if not o.is_sweep_override() and _top(o) in (*EXPERIMENT, "arm")]
    config = _compose_checked([o.input_line for o in chosen])
    sweep = set(SWEEPS) & set(arguments)
    if config["experiment"] and not config["arms"]:
        raise ConfigurationError(
            f"experiment '{config['experiment']}' is computed and trains nothing: "
            f"python -m experiments tables {config['experiment']}"
        )
    if config["arm"] is None and config["arms"] and not sweep:
        raise ConfigurationError(
            f"experiment '{config['experiment']}' has several arms; add -m to run them all, or arm=<one of "
            f"{', '.join(config['arms'])}>"
        )
    if sweep and config["arm"] is None and config["arms"]:
        swept.setdefault("arm", list(config["arms"]))
        swept.setdefault("seed", _seeds_of_all(config["seeds"], config["arm_seeds"]).split(","))
    if not sweep and swept:
        raise ConfigurationError(f"got several values of {', '.join(swept)}; add -m to run them all")
    first = {key: values[0] for key, values in swept.items() if values}
    varied = [first] + [first | {key: value} for key, values in swept.items() for value in values[1:]]
    return [compose([*fixed, *(f"{key}={value}" for key, value in values.items())]) for values in varied]


def check_launcher(arguments: Sequence[str]) -> None:
    """Raise a ConfigurationError for a command line whose jobs could not be queued, or would be stopped at once."""
    chosen = [a for a in arguments if _key(a).startswith(("hydra/launcher", "hydra.launcher"))]
    if not any(argument.startswith("hydra/launcher") for argument in chosen):
        return
    with _own_hydra(str(CONF)):
        launcher = hydra_compose("config", overrides=chosen, return_hydra_config=True).hydra.launcher
    if not launcher._target_.endswith(".SlurmLauncher"):
        return
    if shutil.which("sbatch") is None:
        raise ConfigurationError(
            "got a launcher for SLURM, and there is no sbatch on this machine; give the command where jobs are "
            "submitted, or leave hydra/launcher out to run here"
        )
    if launcher.signal_delay_s >= 60 * launcher.timeout_min:
        raise ConfigurationError(
            f"hydra.launcher.signal_delay_s: got {launcher.signal_delay_s} seconds before a time limit of "
            f"hydra.launcher.timeout_min={launcher.timeout_min} minutes; expected less, or every job would be stopped "
            "as it starts"
        )


def _compose_checked(overrides: Sequence[str]) -> dict[str, Any]:
    name = next((o.partition("=")[2] for o in overrides if o.startswith("experiment=")), None)
    if name and name not in experiment_names():
        raise ConfigurationError(did_you_mean("experiment", name, experiment_names()))
    return _compose(overrides)


@contextlib.contextmanager
def _own_hydra(conf: str) -> Iterator[None]:
    """A Hydra to compose with. Inside a Hydra job there is an outer one, which survives this."""
    register()
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(conf, version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = outer


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(_composed_with_choices(tuple(overrides), str(CONF))[0], resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        cause = error.__cause__ or error
        text = str(cause).split("\n    full_key", 1)[0].strip() or str(error)
        key = getattr(cause, "full_key", None)
        raise ConfigurationError(f"{text}{f' (key {key})' if key else ''}") from None


def _groups() -> set[str]:
    return {path.name for path in CONF.iterdir() if path.is_dir()} - {"hydra"}


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _top(override: Override) -> str:
    return override.get_key_element().lstrip("+~").partition(".")[0]


def _values(override: Any) -> list[str]:
    if override.is_sweep_override():
        return [str(value) for value in override.sweep_string_iterator()]
    value = override.value()
    return [] if value is None else [str(value)]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides([o for o in overrides if not o.startswith("-")])
    except OverrideParseException as error:
        raise ConfigurationError(
            f"cannot read the override '{error.override}'; expected key=value, quoted where the value holds "
            "spaces, commas or brackets, as in 'loss.weight=0.3'"
        ) from None


def _keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every key that can be set, dotted."""
    keys = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += _keys(value, f"{prefix}{key}.")
    return keys
