"""Arrows point one way, the losses need torch alone, no file knows the machine it was written on."""

import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_the_contracts_between_packages_hold():
    """They are in pyproject.toml, [tool.importlinter]."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Contracts: [3-9] kept, 0 broken", done.stdout)


@cache
def graph():
    return grimp.build_graph("ntl", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)


def imports_of(*tops):
    """What the modules of these packages import, as (importer, imported)."""
    modules = [m for m in graph().modules if any(m == top or m.startswith(f"{top}.") for top in tops)]
    assert modules
    return {(m, imported) for m in modules for imported in graph().find_modules_directly_imported_by(m)}


def test_no_module_of_the_library_imports_itself_by_way_of_others():
    """Imports for type annotations count too, and those within functions."""
    found = grimp.build_graph("ntl", exclude_type_checking_imports=False, cache_dir=None)
    remaining = {module: found.find_modules_directly_imported_by(module) for module in found.modules}
    # Modules that import nothing that remains are taken away, again and again: what is left is on a cycle or above one.
    while free := {module for module, imported in remaining.items() if not imported & remaining.keys()}:
        remaining = {module: imported for module, imported in remaining.items() if module not in free}
    cycles = {module: sorted(imported & remaining.keys()) for module, imported in remaining.items()}
    assert not cycles


def test_the_losses_know_nothing_but_numbers_options_text_and_torch():
    for importer, imported in imports_of("ntl.losses", "ntl.numbers"):
        if imported.startswith("ntl."):
            allowed = imported.startswith(("ntl.losses", "ntl.numbers")) or imported in ("ntl.options", "ntl.text")
            assert allowed and not (importer == "ntl.numbers" and imported.startswith("ntl.losses")), (
                importer,
                imported,
            )
        else:
            assert imported == "torch" or imported in sys.stdlib_module_names, (importer, imported)


@pytest.mark.parametrize("module", ["ntl.text", "ntl.files"])
def test_small_helpers_need_the_standard_library_alone(module):
    for importer, imported in imports_of(module):
        assert imported in sys.stdlib_module_names, (importer, imported)


@pytest.mark.parametrize(
    "module",
    [
        "ntl.settings",
        "ntl.losses.options",
        "ntl.encodings.options",
        "ntl.evaluation.metrics",
        "ntl.evaluation.baselines",
        "ntl.training.checkpoints",
        "ntl.runs.scrubbing",
    ],
)
def test_plain_modules_load_no_torch_when_they_are_imported(module):
    program = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'hydra'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_nobody_imports_the_entry_point():
    for path in (p for folder in ("ntl", "experiments", "data_prep") for p in (ROOT / folder).rglob("*.py")):
        assert not re.search(r"^\s*(from run import|import run\b)", path.read_text(), re.MULTILINE), path


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# Made-up places, which tests plant in order to look for them where they must not be.
MADE_UP = re.compile(r"/home/(somebody|agnes)|/mnt/disk 1")
PLACE = re.compile(r"(?<![\w.…>])/(home|root|Users|tmp|work|mnt|srv/home|private|scratch)/[\w.-]+")


def test_no_file_names_a_place_on_one_machine():
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if PLACE.search(MADE_UP.sub("", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_every_test_mirrors_a_folder_that_exists():
    folders = {p.parent.relative_to(ROOT / "tests") for p in tracked() if ROOT / "tests" in p.parents}
    assert all((ROOT / folder).is_dir() for folder in folders - {Path("fuzz"), Path("helpers")})


@pytest.mark.slow
def test_a_wheel_holds_the_library_alone(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {path.relative_to(ROOT).as_posix() for path in tracked() if ROOT / "ntl" in path.parents}
    assert modules <= set(names)
    assert {name.partition("/")[0] for name in names} == {"ntl", f"{wheel.name.rsplit('-', 3)[0]}.dist-info"}
    assert any(name.endswith("LICENSE") for name in names)
    metadata = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("/METADATA"))).decode()
    plain = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert plain == ["Requires-Dist: torch>=2.4"]
