"""Train a tiny model on equal rows, and write what its first dropout leaves out at every micro-batch.

`python masks.py <seed> <folder>`, under torchrun; process r writes `<folder>/<r>.json`.
"""

import hashlib
import json
import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[n]) for n in (1, 2))

import torch
from helpers import tiny
from helpers.training import objective, settings

from ntl import distributed
from ntl.training import train as training


def main(seed, folder):
    distributed.join()
    model = tiny.model("t5", seed=7, dropout=0.5)
    masks = []

    def note(module, arguments, output):
        if module.training:
            masks.append(hashlib.sha256((output == 0).numpy().tobytes()).hexdigest())

    model.encoder.dropout.register_forward_hook(note)
    data = tiny.dataset([tiny.ROWS[0]] * 8)
    rest = settings(steps=4, batch_size=4, accumulate=2), seed, folder / "checkpoints"
    training.train(model, tiny.layout("t5"), objective(model), data, data, *rest)
    (folder / f"{distributed.rank()}.json").write_text(json.dumps(masks))
    digest = hashlib.sha256(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes())
    (folder / f"{distributed.rank()}.weights").write_text(digest.hexdigest())
    distributed.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
