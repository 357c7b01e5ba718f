"""`trinity debug --module viewer` opens Studio beside the runs of a file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trinity.cli import studio
from trinity.cli.main import make_app

EXAMPLE = Path(__file__).parents[3] / "examples/addition/addition.yaml"


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
