"""Shells complete commands and options, also those of commands that are imported when chosen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRINITY = Path(sys.executable).with_name("trinity")


def completed(line: str) -> list[str]:
    """What bash is told for a line that ends in the word to complete."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_TRINITY_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [TRINITY], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trinity sta", {"status"}),
        ("trinity view --so", {"--sort"}),
        ("trinity config ini", {"init"}),
        ("trinity config init --prompt", {"--prompt-key"}),
    ],
)
def test_what_is_begun_is_completed(line: str, expected: set[str]) -> None:
    assert set(completed(line)) == expected
