"""The models that a run leaves on this machine's disk, found without its services."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from trinity.errors import ManifestError
from trinity.weights.manifest import MANIFEST_NAME, Manifest, Sha256Hex, read_regular_file

BEST_FOLDER = "best"
DELTA_NAME = "delta.json"
"""File of a version that is stored as its difference to another one."""
LINEAGE_NAME = "lineage.json"
"""File of a version with the digest of all batches that it was trained on."""
_VERSION = re.compile(r"v(\d+)-(\d+)(?:-(\d+))?")


class StoredLineage(BaseModel):
    """The file next to the weights of a version."""

    lineage_sha256: Sha256Hex


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A Hugging Face directory with one version of a stage's weights."""

    path: Path
    stage: str
    version: int


def best_model(job_dir: Path, stage: str) -> StoredModel | None:
    """Returns a stage's best version by evaluation; None if no best version is kept."""
    folder = job_dir / "stages" / stage
    manifest = best_manifest(folder)
    return None if manifest is None else StoredModel(folder / BEST_FOLDER, stage, manifest.step)


def best_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest of the best version in a stage's folder; None if there is none."""
    try:
        return read_manifest(folder / BEST_FOLDER)
    except ManifestError:
        return None


def read_manifest(directory: Path) -> Manifest:
    """Returns the manifest of a version that no announcement vouches for.

    Raises: ManifestError.
    """
    path = directory / MANIFEST_NAME
    try:
        return Manifest.model_validate_json(read_regular_file(path))
    except (OSError, ValidationError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error


def newest_model(job_dir: Path, stage: str, *, whole: bool = True) -> StoredModel | None:
    """Returns the newest version of a stage; a `whole` one can be loaded as it is."""
    found = [
        (tuple(int(number or 0) for number in match.groups()), path)
        for path in (job_dir / "stages" / stage / "weights").glob("v*")
        if (match := _VERSION.fullmatch(path.name))
        and (path / MANIFEST_NAME).is_file()
        and not (whole and is_delta(path))
    ]
    if not found:
        return None
    numbers, path = max(found)
    return StoredModel(path, stage, numbers[0])


def is_delta(directory: Path) -> bool:
    """Returns True for a version that is not whole without another one."""
    return (directory / DELTA_NAME).is_file()


def write_lineage(directory: Path, lineage: bytes) -> None:
    """Writes the digest of a version's batches next to its weights, before they are sealed."""
    content = StoredLineage(lineage_sha256=lineage.hex()).model_dump_json()
    (directory / LINEAGE_NAME).write_text(content)


def read_lineage(directory: Path) -> bytes:
    """Returns that digest; empty where there is none that can be read."""
    try:
        content = read_regular_file(directory / LINEAGE_NAME)
        return bytes.fromhex(StoredLineage.model_validate_json(content).lineage_sha256)
    except (OSError, ValidationError):
        return b""


def model_lines(job_dir: Path, stages: Iterable[str]) -> list[str]:
    """Names the best and the newest version of the last of the stages that has weights."""
    for stage in reversed(list(stages)):
        if (newest := newest_model(job_dir, stage)) is None:
            continue
        best = best_model(job_dir, stage)
        shown = [] if best is None else [f"best model    {best.path} (version {best.version})"]
        if best is None or best.version != newest.version:
            shown.append(f"newest model  {newest.path} (version {newest.version})")
        latest = newest_model(job_dir, stage, whole=False)
        if latest is not None and latest.version > newest.version:
            shown.append(
                f"newer still   {latest.path} (version {latest.version}) is a difference: "
                "`mode: serve` and `trinity push-to-hub --newest` apply it"
            )
        return shown
    return []
