"""Asking a trained model, and its folder: weights and tokenizer in the library's own format, and what answering needs.

Where the encoding adds nothing to the model, `AutoModelFor….from_pretrained(folder)` and
`AutoTokenizer.from_pretrained(folder)` load it without this package.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ntl.data import EncodedDataset, Layout, layout_for
from ntl.models import aligned, lora, weights
from ntl.quiet import quiet_libraries
from ntl.settings import EvalSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ntl.encodings import Encoding
    from ntl.encodings.base import Generated

ANSWERING = "answering.json"


class NoModel(ValueError):
    """A folder that holds no trained model of this suite."""


class SavedModelDiffers(RuntimeError):
    """A saved model that does not answer as the one that was saved."""


class Trained(NamedTuple):
    """All that is needed to answer questions."""

    model: PreTrainedModel
    encoding: Encoding
    layout: Layout
    eval: EvalSettings
    max_new_tokens: int
    question_tokens: int | None = None  # longer questions are cut


def save(folder: Path, trained: Trained, loss_on: str) -> None:
    """Write a trained model to `folder`, replacing what was there; adapters (LoRA) are merged into its weights."""
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    lora.merged(trained.model).save_pretrained(temporary)
    trained.encoding.save(temporary)
    answering = {
        "encoding": trained.encoding.name,
        "encoding_options": trained.encoding.arguments,
        "loss_on": loss_on,
        "beams": trained.eval.beams,
        "decode": trained.eval.decode,
        "max_new_tokens": trained.max_new_tokens,
        "question_tokens": trained.question_tokens,
    }
    (temporary / ANSWERING).write_text(json.dumps(answering, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def check_saved(folder: Path, trained: Trained, questions: Sequence[str]) -> None:
    """Read what `save` wrote to `folder`, and compare its answers to `questions` with those of `trained`.

    Both answer on one device, in one batch and with equal weights, so that their answers are equal token by token. An
    accelerator may round otherwise from call to call: if they differ there, both are moved to the CPU and asked again.

    Raises:
        SavedModelDiffers: they are not equal; the text names a question and both answers.
    """
    saved = load(folder)
    for device in dict.fromkeys((str(trained.model.device), "cpu")):
        ours, theirs = (_answers(it, questions, device) for it in (trained, saved))
        if ours == theirs:
            return
    question, one, other = next(found for found in zip(questions, ours, theirs, strict=True) if found[1] != found[2])
    raise SavedModelDiffers(
        f"the model saved in '{folder.name}' answers {other.text!r} to {question!r}, expected {one.text!r} as before "
        "it was saved: the scores are not those of the saved model"
    )


def _answers(trained: Trained, questions: Sequence[str], device: str) -> list[Generated]:
    prompts = trained.layout.prompt_batch([question for question, _ in _encoded(questions, trained)])
    return trained.encoding.generate(
        trained.model.to(device),
        prompts,
        max_new_tokens=trained.max_new_tokens,
        num_beams=trained.eval.beams,
        decode=trained.eval.decode,
    )


def _encoded(questions: Sequence[str], trained: Trained) -> EncodedDataset:
    rows = [{"question": question, "answer": ""} for question in questions]
    return EncodedDataset(rows, trained.encoding, trained.question_tokens)


def ask(folder: Path, questions: Sequence[str]) -> list[str]:
    """The answers of a trained model, one for each question.

    Args:
        folder: what `save` wrote, or the folder of a run with that in `model`.

    Raises:
        NoModel: it holds no trained model of this suite.
    """
    from ntl.evaluation.answer import answer

    quiet_libraries()
    nested = folder / "model"
    trained = load(nested if nested.is_dir() else folder)
    data = _encoded(questions, trained)
    return answer(trained.model, trained.encoding, trained.layout, data, trained.eval, trained.max_new_tokens).texts


def load(folder: Path) -> Trained:
    """Read what `save` wrote.

    Raises:
        NoModel: the folder holds no trained model of this suite, or its weights are not that model's.
    """
    import transformers

    from ntl import encodings

    path = folder / ANSWERING
    if not path.is_file():
        raise NoModel(f"'{folder}' holds no trained model: expected {ANSWERING}, weights and a tokenizer in it")
    answering: dict[str, Any] = json.loads(path.read_text())
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    tokenizer = encodings.PretrainedTokenizer(str(folder))
    encoding = encodings.build(answering["encoding"], tokenizer, **answering["encoding_options"])
    try:
        model = aligned(weights.read(encoding.model_class(config), folder, trust_remote_code=False))
    except weights.UnfitWeights as error:
        raise NoModel(f"'{folder}' holds no whole model: {error}; train it again, or restore the folder") from error
    encoding.adapt(model)
    encoding.resize(model.config.vocab_size)
    encoding.decoder_start_id = getattr(config, "decoder_start_token_id", None)
    return Trained(
        model=model.eval(),
        encoding=encoding,
        layout=layout_for(config.is_encoder_decoder, encoding, answering["loss_on"]),
        eval=EvalSettings(beams=answering["beams"], decode=answering["decode"]),
        max_new_tokens=answering["max_new_tokens"],
        question_tokens=answering.get("question_tokens"),
    )
