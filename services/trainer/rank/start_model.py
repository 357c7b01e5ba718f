"""The directory of the model that a stage starts from: verified, or fetched from the hub."""

from pathlib import Path

from services.trainer.collectives import Ranks
from trinity.errors import ManifestError, RunFailed, UserError
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.runtime.retry import WaitReporter
from trinity.weights.manifest import verify

MODEL_FILE_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py")


def starting_directory(
    path: str,
    manifest_sha256: str,
    *,
    ranks: Ranks,
    waits: WaitReporter,
    life: LifeSigns = UNWATCHED,
) -> Path:
    """Returns the local directory, verified by its manifest, or fetched from the hub. Collective.

    Raises: RunFailed when an earlier stage's weights are damaged, UserError when there is no model.
    """
    if ranks.is_first:
        if manifest_sha256:
            directory = _verify(Path(path), manifest_sha256, life)
        else:
            directory = Path(path) if Path(path).is_dir() else _download(path, waits)
        ranks.broadcast_bytes(str(directory).encode())
        return directory
    return Path(ranks.broadcast_bytes(b"").decode())


def _verify(directory: Path, manifest_sha256: str, life: LifeSigns) -> Path:
    try:
        verify(directory, bytes.fromhex(manifest_sha256), life=life)
    except ManifestError as error:
        raise RunFailed(f"the final weights of the previous stage are damaged: {error}") from error
    return directory


def _download(path: str, waits: WaitReporter) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    waits.set("model", waits_for="the model hub", reason=f"{path} is being fetched")
    try:
        return Path(snapshot_download(path, allow_patterns=list(MODEL_FILE_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"`model.model_path: {path}` is neither a directory nor a model on the hub: "
            f"{str(error).splitlines()[0]}"
        ) from error
    finally:
        waits.clear("model")
