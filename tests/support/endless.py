"""Controls for tests that something ends: code that, done the simple way, does not."""

import subprocess
import sys

import pytest

SECONDS = 3.0
"""A slower machine needs longer still, so no control depends on how fast it is."""


def assert_takes_long(code: str) -> None:
    """Asserts that a Python program has not ended after a few seconds."""
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], timeout=SECONDS, check=True)
