"""The newest weights that a run has published, found in its directory."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from services.explorer.weights_types import PublishedWeights, WeightsId
from trinity.manifest import MANIFEST_NAME, Manifest

PLAN_FILE = "config.json"
"""The plan that the run was started with, which names its stages in order."""
DIRECTORY = re.compile(r"v\d+-\d+")


def newest_weights(job_dir: Path) -> PublishedWeights | None:
    """Returns the latest version of the latest incarnation in the last stage that has any.

    Only complete directories have such names; those removed meanwhile are skipped.
    """
    for stage in reversed(_stages(job_dir)):
        found = list(_published(job_dir / "stages" / stage / "weights"))
        if found:
            return max(found, key=lambda weights: (weights.id.incarnation, weights.id.version))
    return None


def _stages(job_dir: Path) -> list[str]:
    try:
        plan = json.loads((job_dir / PLAN_FILE).read_bytes())
    except FileNotFoundError:
        return []
    return [str(stage["name"]) for stage in plan["stages"]]


def _published(folder: Path) -> Iterator[PublishedWeights]:
    for path in folder.glob("v*-*") if folder.is_dir() else ():
        if not DIRECTORY.fullmatch(path.name):
            continue
        try:
            content = (path / MANIFEST_NAME).read_bytes()
            manifest = Manifest.model_validate_json(content)
        except (OSError, ValidationError):
            continue
        yield PublishedWeights(
            id=WeightsId(version=manifest.step, incarnation=manifest.incarnation),
            path=path,
            manifest_sha256=hashlib.sha256(content).digest(),
            weights_sha256=bytes.fromhex(manifest.weights_sha256),
        )
