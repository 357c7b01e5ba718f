"""Writes the rows produced by a user-defined dataset class and sampler to files.

The class runs in a separate process (`trinity.verl.rows_process`), which ends with this one, on
Ctrl-C and at a time limit.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from trinity.errors import UserError
from trinity.runtime.owned_places import claim_folder
from trinity.runtime.process.worker import Message, NotAnAnswer, Worker, WorkerFailed
from trinity.verl.settings import VerlSettings
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import JsonValue

CLASS, SAMPLER = "data.custom_cls", "data.sampler"
MAX_SAMPLES = ("data.train_max_samples", "data.val_max_samples")
_SPLITS = {"train": "data.train_files", "val": "data.val_files"}
_DEFAULTS: dict[str, JsonValue] = {
    "prompt_key": "prompt",
    "reward_fn_key": "data_source",
    "max_prompt_length": 512,
    "max_response_length": 512,
    "shuffle": True,
    "seed": None,
    "return_raw_chat": True,
    "dataloader_num_workers": 0,
    "train_max_samples": -1,
    "val_max_samples": -1,
}
"""veRL's, as far as its classes of rows read them; a sampler wants no workers."""
_OF_AGENTS = ("tool_config_path", "function_tool_path")
_ROLLOUT = "actor_rollout_ref.rollout.multi_turn"
_MODEL = "actor_rollout_ref.model.path"


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Files of rows, split by split."""

    files: dict[str, Path]
    counts: dict[str, int]
    is_ordered: bool
    """True if the rows lie in a sampler's order."""
    told_after_batches: bool
    """True if veRL tells the sampler what became of each batch."""

    @property
    def summary(self) -> str:
        """`wrote 960 rows to data/train.parquet, 40 to data/val.parquet`."""
        parts = [f"{self.counts[split]} to {file}" for split, file in self.files.items()]
        return f"wrote {', '.join(parts)}".replace(" to ", " rows to ", 1)


def asks_for_rows(settings: VerlSettings) -> bool:
    """Returns True if rows depend on user-defined code, or are limited in number."""
    keys = [f"{CLASS}.path", f"{SAMPLER}.class_path"]
    limits = [settings.peek(key) for key in MAX_SAMPLES]
    has_limit = any(isinstance(limit, int) and limit > 0 for limit in limits)
    return has_limit or any(settings.peek(key) for key in keys)


def write_rows(settings: VerlSettings, folder: Path, seconds: float) -> WrittenRows:
    """Makes the rows of a script's class, in the order of its sampler, and writes them.

    Raises: UserError if the script has no such class or limit, or if writing fails or takes too
    long.
    """
    if not asks_for_rows(settings):
        raise UserError(
            f"--write-rows is for `{CLASS}`, `{SAMPLER}` and `data.train_max_samples`, which the "
            "script does not set: leave it out"
        )
    claim_folder(folder, "give a new or an empty folder to --write-rows")
    found = asyncio.run(_made(_request(settings, folder), seconds))
    if "error" in found:
        raise UserError(f"the rows could not be made: {found['error']}")
    return WrittenRows(
        files={split: Path(file) for split, file in found["files"].items()},
        counts=found["counts"],
        is_ordered=found["is_ordered"],
        told_after_batches=found["told_after_batches"],
    )


def _request(settings: VerlSettings, folder: Path) -> dict[str, JsonValue]:
    """Returns the input of the process: veRL's section `data`, the model and the target folder."""
    data: dict[str, JsonValue] = dict(_DEFAULTS)
    for name in _OF_AGENTS:
        data[name] = settings.peek(f"{_ROLLOUT}.{name}")
    for setting in settings.all():
        if setting.key.startswith("data.") and UNKNOWN not in str(setting.value):
            _put(data, setting.key.split(".")[1:], setting.value)
    data["filter_overlong_prompts"] = False  # a run leaves them out, and says so
    files: dict[str, JsonValue] = {
        split: settings.peek(key) for split, key in _SPLITS.items() if settings.peek(key)
    }
    return {
        "data": data,
        "files": files,
        "model": settings.peek(_MODEL),
        "folder": str(folder),
        "import_from": str(Path.cwd()),
    }


def _put(section: dict[str, JsonValue], path: list[str], value: JsonValue) -> None:
    *parents, last = path
    for parent in parents:
        below = section.setdefault(parent, {})
        if not isinstance(below, dict):
            below = section[parent] = {}
        section = below
    section[last] = value


async def _made(request: dict[str, JsonValue], seconds: float) -> Message:
    """Returns the answer of the process."""
    worker = await Worker.start("trinity.verl.rows_process")
    try:
        worker.ask(request)
        async with asyncio.timeout(seconds):
            return await worker.read()
    except TimeoutError:
        raise UserError(
            f"the rows were not made in {seconds:g} seconds: give --write-rows-seconds more"
        ) from None
    except NotAnAnswer as error:
        raise UserError(f"the rows could not be made: {error}") from error
    except WorkerFailed as error:
        code = worker.process.returncode
        raise UserError(f"the rows could not be made: their process ended with {code}") from error
    finally:
        await worker.kill()
