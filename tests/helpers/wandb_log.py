"""Reads what W&B wrote offline: a LevelDB log of protobuf records, for which the package has no Python reader."""

import json
import struct
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32 * 1024
FIRST_HEADER, CHUNK_HEADER = 7, struct.Struct("<IHB")  # crc, length, kind (1 whole, 2 first, 3 middle, 4 last)


def read_records(path: Path) -> list[Record]:
    """Return all records of a `run-<id>.wandb` file that are wholly on disk: its writer may not have finished."""
    content, position, payload, records = path.read_bytes(), FIRST_HEADER, b"", []
    assert content[:4] == b":W&B"
    while position + CHUNK_HEADER.size <= len(content):
        if BLOCK - position % BLOCK < CHUNK_HEADER.size:  # the padded end of a block
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = CHUNK_HEADER.unpack_from(content, position)
        position += CHUNK_HEADER.size
        if position + length > len(content):
            break  # the end of this chunk is not written yet
        payload += content[position : position + length]
        position += length
        if kind in (1, 4):
            records.append(Record.FromString(payload))
            payload = b""
    return records


def read_run(path: Path) -> dict[str, Any]:
    """Return id, config, curves {name: [(step, value)]}, summary and exit code (None if it never ended)."""
    run: dict[str, Any] = {"id": None, "config": {}, "curves": {}, "summary": {}, "exit": None}
    for record in read_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run["id"] = record.run.run_id
            run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            point = {_key(item): json.loads(item.value_json) for item in record.history.item}
            for name, value in point.items():
                if not name.startswith("_"):
                    run["curves"].setdefault(name, []).append((point["_step"], value))
        elif kind == "summary":
            run["summary"] |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
        elif kind == "exit":
            run["exit"] = record.exit.exit_code
    return run


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)
