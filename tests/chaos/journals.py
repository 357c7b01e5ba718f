"""What the producers saw, written down by themselves: the checker compares it with the database."""

import hashlib
import time
from pathlib import Path
from typing import Any

from services.explorer.delivery.outbox import RESULTS_FIELD
from tests.chaos.folder import FaultsFolder
from tests.chaos.patching import Function, patch
from tests.chaos.snapshot import DATA
from tests.support.model_free.engine import END_TOKEN
from tests.support.model_free.model import read_digest
from trinity.api.v1.experience_pb2 import RunResult
from trinity.errors import ManifestError
from trinity.weights.manifest import MANIFEST_NAME, verify

TOLD, BATCHES, LOADS = "told", "batches", "loads"
ANSWERS, SAMPLINGS = "answers", "samplings"


def keep_told(folder: FaultsFolder) -> None:
    """What the explorer was told about its results, at the moment it lets go of them."""

    def wrap(original: Function) -> Function:
        def settle(self: Any, sequence: int, report: Any) -> None:
            held = self._pending.get(sequence)
            if held is not None and held.field_number == RESULTS_FIELD:
                folder.log(TOLD, _told(RunResult.FromString(held.body), report))
            original(self, sequence, report)

        return settle

    patch("services.explorer.delivery.outbox:Outbox.resolve", wrap)


def _told(message: RunResult, report: Any) -> dict[str, object]:
    return {
        "experiment_id": message.experiment_id,
        "assignment_id": message.assignment_id,
        "run": message.run,
        "attempt": message.attempt,
        "sequence": message.sequence,
        "fate": report.outcome.value,
        "experience_ids": [one.id for one in message.experiences],
    }


def keep_loads(folder: FaultsFolder) -> None:
    """Which weights an engine was given, and whether their files were then what they should be.

    Looked at here once more: the explorer's own look is what is tested.
    """

    def wrap(original: Function) -> Function:
        async def load_weights(self: Any, directory: Path) -> None:
            await original(self, directory)
            if not (directory / MANIFEST_NAME).exists():
                return  # a delta that the explorer has applied, and verified by its tensors
            sha256 = hashlib.sha256((directory / MANIFEST_NAME).read_bytes()).digest()
            line = {"path": str(directory), "manifest_sha256": sha256.hex()}
            line["digest"] = read_digest(directory).hex()
            folder.log(LOADS, {**line, "is_intact": is_intact(directory, sha256)})

        return load_weights

    patch("tests.support.model_free.engine:HashEngine.load_weights", wrap)
    patch("tests.support.model_free.slots:SlotEngine.load_weights", wrap)


def keep_samplings(folder: FaultsFolder) -> None:
    """When the engine began with an answer, and which one it was."""

    def wrap(original: Function) -> Function:
        async def generate(self: Any, prompt: Any, sampling: Any, **more: Any) -> Any:
            begun = time.time()
            made = await original(self, prompt, sampling, **more)
            texts = [bytes(tokens).decode() for tokens in (prompt, made.token_ids)]
            said = texts[1].removesuffix(chr(END_TOKEN))
            folder.log(SAMPLINGS, {"begun": begun, "prompt": texts[0], "said": said})
            return made

        return generate

    patch("tests.support.model_free.engine:HashEngine.generate", wrap)


class _Keeping:
    """A reader of rows that keeps what it is given to read."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.messages: list[Any] = []

    def read(self, messages: Any, *, oldest_version: int) -> Any:
        self.messages += messages
        return self._reader.read(messages, oldest_version=oldest_version)


def keep_batches(folder: FaultsFolder) -> None:
    """The rows of each batch as the trainer got them."""

    def wrap(original: Function) -> Function:
        def receive(self: Any, request: Any, reader: Any) -> Any:
            keeping = _Keeping(reader)
            answer = original(self, request, keeping)
            if keeping.messages:
                ordered = sorted(keeping.messages, key=lambda row: row.position)
                line = {
                    "experiment_id": request.key.experiment_id,
                    "step": request.step,
                    "incarnation": request.incarnation,
                    "rows": [[_content(row), row.advantage] for row in ordered],
                }
                folder.log(BATCHES, line)
            return answer

        return receive

    patch("services.trainer.clients:TrainerBufferClient._receive", wrap)


def _content(row: Any) -> str:
    if row.WhichOneof("source") == "experience":
        return str(row.experience.id)
    return f"{DATA}{row.row_index}"


def is_intact(directory: Path, manifest_sha256: bytes) -> bool:
    """Whether a directory is what its manifest says."""
    try:
        verify(directory, manifest_sha256)
    except (ManifestError, OSError):
        return False
    return True
