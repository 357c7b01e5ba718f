"""Fills the cache with models of the hub: python -m trinity.run.deploy.fetch MODEL ...

A job runs it once. With --wait it waits for that job, as services do that start at the same time:
a file in the cache says that these models are whole.
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trinity.config.plan.model import MODEL_FILE_PATTERNS

POLL_SECONDS = 2.0
WAIT_SECONDS = 3600.0
"""Then the waiting container is started again."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs the job; its entry point."""
    parser = argparse.ArgumentParser(description="Fetches models of the hub into the cache.")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--wait", action="store_true", help="wait until another one has done it")
    options = parser.parse_args(words)
    names = ", ".join(options.models)
    try:
        if options.wait:
            return _wait(_mark(options.models), names)
        _fetch(options.models)
    except OSError as error:  # those of the hub are, too
        reason = str(error).partition("\n")[0]
        sys.stderr.write(
            f"error: {names} cannot be fetched into HF_HOME: {reason}; for a closed model give the "
            "job the variable HF_TOKEN\n"
        )
        return 1
    sys.stdout.write(f"{names}: whole in the cache\n")
    return 0


def _fetch(models: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download

    for model in models:
        snapshot_download(model, allow_patterns=list(MODEL_FILE_PATTERNS))
    _mark(models).touch()


def _wait(mark: Path, names: str) -> int:
    sys.stdout.write(f"waiting for {names}\n")
    sys.stdout.flush()
    deadline = time.monotonic() + WAIT_SECONDS
    while not mark.exists():
        if time.monotonic() > deadline:
            sys.stderr.write(f"error: {names}: not fetched, see the log of the job fetch-models\n")
            return 1
        time.sleep(POLL_SECONDS)
    return 0


def _mark(models: Sequence[str]) -> Path:
    """Returns the file that is there once all these models are."""
    digest = hashlib.sha256("\n".join(sorted(models)).encode()).hexdigest()[:8]
    return Path(os.environ["HF_HOME"]) / f".fetched-{digest}"


if __name__ == "__main__":
    sys.exit(main())
