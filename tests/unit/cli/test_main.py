"""The list of commands is for reading: whole sentences, and no line of gRPC's core."""

import os
import subprocess
import sys


def trinity(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trinity.cli.main", *words],
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_summaries_are_whole() -> None:
    assert "experiences of a train step, with their weights and tasks." in trinity("--help")
    assert "no GPU, model or service is checked." in trinity("config", "--help")


def test_the_version_is_told() -> None:
    assert trinity("--version").startswith("trinity 0.")
