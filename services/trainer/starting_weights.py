"""Starting weights of a stage: the user's model, the previous stage's result, or a former run."""

from pathlib import Path

from services.trainer.rank_waits import NamedWaits
from services.trainer.ranks import Ranks
from trinity.config.plan import StagePlan
from trinity.config.start_checkpoint import (
    StartCheckpoint,
    check_start,
    start_checkpoint,
    verify_start,
)
from trinity.errors import ManifestError, RunFailed, UserError
from trinity.manifest import verify

WANTED_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py")


def starting_directory(path: str, manifest_sha256: str, *, ranks: Ranks, waits: NamedWaits) -> Path:
    """Returns the local directory, verified by its manifest, or fetched from the hub. Collective.

    Raises: RunFailed when an earlier stage's weights are damaged, UserError when there is no model.
    """
    if ranks.is_first:
        if manifest_sha256:
            directory = _verified(Path(path), manifest_sha256)
        else:
            directory = Path(path) if Path(path).is_dir() else _fetched(path, waits)
        ranks.bytes_from_first(str(directory).encode())
        return directory
    return Path(ranks.bytes_from_first(b"").decode())


def former_start(plan: StagePlan, *, has_checkpoint: bool, ranks: Ranks) -> StartCheckpoint | None:
    """Returns the checkpoint of a former run, as long as the stage needs it. Collective.

    Raises: UserError if it does not fit the plan.
    """
    path = plan.start_checkpoint
    if path is None or (has_checkpoint and not _stays_below(plan, path)):
        return None
    check_start(plan)
    found = start_checkpoint(path)
    if ranks.is_first:
        verify_start(found)
    ranks.barrier()
    return found


def _stays_below(plan: StagePlan, path: str) -> bool:
    """True if these weights are the base of the adapter's checkpoints, which do not hold them."""
    is_there = plan.lora is not None and Path(path).is_dir()
    return is_there and start_checkpoint(path).num_ranks is None


def _verified(directory: Path, manifest_sha256: str) -> Path:
    try:
        verify(directory, bytes.fromhex(manifest_sha256))
    except ManifestError as error:
        raise RunFailed(f"the final weights of the previous stage are damaged: {error}") from error
    return directory


def _fetched(path: str, waits: NamedWaits) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    waits.set("model", waits_for="the model hub", reason=f"{path} is being fetched")
    try:
        return Path(snapshot_download(path, allow_patterns=list(WANTED_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"`model.model_path: {path}` is neither a directory nor a model on the hub: "
            f"{str(error).splitlines()[0]}"
        ) from error
    finally:
        waits.clear("model")
