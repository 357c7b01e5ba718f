"""`trinity why` where no run is going on."""

import subprocess
import sys
from pathlib import Path


def trinity(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trinity.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_without_a_run_it_names_the_directory_as_a_users_mistake(tmp_path: Path) -> None:
    done = trinity("why", "--job-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        f"error: no run is going on in {tmp_path}: none was started there; "
        "give its --config or its --job-dir\n"
    )


def test_the_help_tells_what_the_exit_codes_mean() -> None:
    said = " ".join(trinity("why", "--help").stdout.split())
    assert "Exit code 0: it makes progress" in said
    assert "3: it is held up" in said
