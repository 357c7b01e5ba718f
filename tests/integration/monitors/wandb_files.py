"""Reads what W&B keeps of a run in its own directory: records in the format of LevelDB's log."""

import json
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2

HEAD_BYTES = 7
"""Of the file, and of each piece: checksum, length, kind."""
BLOCK_BYTES = 32 * 1024
LAST_PIECES = (1, 4)

Row = dict[str, object]


def records(file: Path) -> Iterator[wandb_internal_pb2.Record]:
    """All records in order."""
    data, at, record = file.read_bytes(), HEAD_BYTES, b""
    while at + HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD_BYTES:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + HEAD_BYTES : at + HEAD_BYTES + length]
        at += HEAD_BYTES + length
        if kind in LAST_PIECES:
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def history(file: Path) -> list[Row]:
    """What was logged, a row a step."""
    rows = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            rows.append({_name(item): json.loads(item.value_json) for item in record.history.item})
    return rows


def run_of(file: Path) -> wandb_internal_pb2.RunRecord:
    """Its name, group and tags."""
    return next(one.run for one in records(file) if one.WhichOneof("record_type") == "run")


def _name(item: wandb_internal_pb2.HistoryItem) -> str:
    return item.key or "/".join(item.nested_key)
