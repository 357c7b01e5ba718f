"""The list of commands is for reading, and `trinity debug` opens Studio beside the runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trinity.cli import studio
from trinity.cli.main import make_app

EXAMPLE = Path(__file__).parents[3] / "examples/addition/addition.yaml"


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


def test_a_package_of_an_extra_that_is_missing_is_one_sentence() -> None:
    done = failing_import("datasets")
    assert done.returncode == 2
    assert done.stderr.startswith("error: datasets (extra `export`) is not installed here: run")
    assert done.stderr.count("\n") == 1


def test_a_command_of_trinity_rft_names_what_does_it_here() -> None:
    command = [sys.executable, "-m", "trinity.cli.main", "convert", "-c", "a", "-s", "100,200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "`trinity convert` is of Trinity-RFT: the weights of a run are in" in done.stderr


def test_any_other_missing_module_is_a_fault_of_ours() -> None:
    assert "Traceback" in failing_import("module_of_no_extra").stderr


def failing_import(module: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a command that imports a module which is not installed."""
    code = (
        "import sys; from trinity.cli import main; "
        f"sys.modules[{module!r}] = None; main.app = lambda: __import__({module!r}); main.main()"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_viewer_shows_the_runs_beside_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[list[Path], int]] = []
    monkeypatch.setattr(studio, "studio", lambda places, port: opened.append((places, port)))
    root = f"checkpoint_root_dir={tmp_path}"
    words = ["debug", "--config", str(EXAMPLE), "--module", "viewer", "--port", "8502", root]
    result = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert opened == [([tmp_path / "examples"], 8502)]
