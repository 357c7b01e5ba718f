"""The model of a stage, for its tokenizer: read from the plan, never fetched."""

import json
from pathlib import Path

from trinity.launch.resume import PLAN_FILE

_TOKENIZER = "tokenizer.json"


def model_of(job_dir: Path, stage: str) -> Path | None:
    """Returns the directory with the tokenizer that a stage's tokens were made with.

    That is the newest published weights of the run, or the model it started from; None if neither
    has a `tokenizer.json` on this machine.
    """
    published = (job_dir / "stages" / stage / "weights").glob(f"*/{_TOKENIZER}")
    files = sorted((job_dir / "stages" / stage / "model_files").glob(_TOKENIZER))
    for found in (*files, *published):
        return found.parent
    model = _planned(job_dir, stage)
    return model if model is not None and (model / _TOKENIZER).is_file() else None


def _planned(job_dir: Path, stage: str) -> Path | None:
    try:
        plan = json.loads((job_dir / PLAN_FILE).read_bytes())
        for planned in plan["stages"]:
            if planned["name"] == stage and isinstance(planned["model_path"], str):
                return Path(planned["model_path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None
