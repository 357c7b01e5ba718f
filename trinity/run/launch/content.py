"""Compares files by their content, also with those of a path that is no longer there."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trinity.config.plan.stage_plan import ExperimentPlan

CONTENT_FILE = "content.json"
SAMPLED_BYTES = 64 * 1024 * 1024
"""Files up to this size are hashed whole; of larger ones, weights above all, three samples."""
SAMPLE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ContentRecord:
    """The content of the paths that a run has used, kept in its directory.

    record = ContentRecord(job_dir)
    record.add(paths_of(plan))
    record.is_same("/old/model", "/new/model")    # also when the old one is gone
    """

    job_dir: Path

    def add(self, paths: Iterable[str]) -> None:
        """Records paths that exist and are not recorded; the first content of a path stays."""
        known = self._load()
        new = {path: content_hash(Path(path)) for path in paths if path not in known}
        found = {path: digest for path, digest in new.items() if digest}
        if found:
            temporary = (self.job_dir / CONTENT_FILE).with_suffix(".tmp")
            temporary.write_text(json.dumps({**known, **found}, indent=1, sort_keys=True))
            temporary.replace(self.job_dir / CONTENT_FILE)

    def is_same(self, before: str, now: str) -> bool:
        """Returns true if the second path has the content that was recorded for the first."""
        was = self._load().get(before) or content_hash(Path(before))
        return bool(was) and was == content_hash(Path(now))

    def _load(self) -> dict[str, str]:
        try:
            known = json.loads((self.job_dir / CONTENT_FILE).read_bytes())
            return {str(path): str(digest) for path, digest in known.items()}
        except (OSError, ValueError, AttributeError):
            return {}  # a damaged record: paths are compared as they are


def paths_of(plan: ExperimentPlan) -> list[str]:
    """Returns the local paths whose content a plan depends on."""
    paths: list[str | None] = []
    for stage in plan.stages:
        paths += [stage.model_path, stage.critic_model_path, stage.teacher_model_path]
        paths += [model.model_path for model in stage.auxiliary_models if model.external is None]
        paths += [taskset.path for taskset in (*stage.tasksets, *stage.eval_tasksets)]
        paths += [rows.path for rows in (stage.experience_buffer, *stage.auxiliary_buffers)]
    return list(dict.fromkeys(path for path in paths if path and Path(path).exists()))


def content_hash(path: Path) -> str:
    """Returns a hash of a file, or of all files below a directory; empty if it does not exist."""
    try:
        if path.is_file():
            return _file_hash(path)
        files = [file for file in sorted(path.rglob("*")) if _counts(file.relative_to(path), file)]
        lines = [f"{file.relative_to(path)} {_file_hash(file)}" for file in files]
    except OSError:
        return ""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def _counts(name: Path, file: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in name.parts)


def _file_hash(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= SAMPLED_BYTES:
            while chunk := opened.read(SAMPLE_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
        for start in (0, size // 2, size - SAMPLE_BYTES):
            opened.seek(start)
            digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()
