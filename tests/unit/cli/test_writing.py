"""Commands name a place that they cannot write or read, and leave nothing behind there."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.cli.test_certs import trinity
from trinity.cli.main import make_app
from trinity.errors import UserError

CONFIG = "examples/addition/addition.yaml"
DRAFT = ("config", "init", "--name", "n", "--model", "a/b", "--taskset", "/data")
VERL = ("config", "from-verl", "data.train_batch_size=8")


def refusal(*words: str) -> str:
    """What a command is told that must not end otherwise."""
    outcome = CliRunner().invoke(make_app(words), list(words))
    assert isinstance(outcome.exception, UserError), outcome.exception or outcome.output
    said = str(outcome.exception)
    assert "Errno" not in said and "\n" not in said
    return said


@pytest.mark.parametrize(
    "words",
    [
        ("certs", "{}/file"),
        ("certs", "{}/file/below"),
        ("deploy", "secrets", "{}/file"),
        ("deploy", "render", "--config", CONFIG, "--output", "{}/file/below"),
        (*DRAFT, "--output", "{}/file/new.yaml"),
        (*VERL, "--output", "{}/file/new.yaml"),
    ],
)
def test_a_file_where_a_folder_should_be_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(*(word.format(tmp_path) for word in words))
    assert f"{tmp_path}/file is a file, not a folder" in said


def test_a_file_in_the_place_of_a_part_is_named(tmp_path: Path) -> None:
    trinity("certs", str(tmp_path), "--name", "one")
    (tmp_path / "buffer").touch()
    assert f"{tmp_path}/buffer is a file, not a folder" in refusal("certs", str(tmp_path))


@pytest.mark.parametrize("words", [(*DRAFT, "--output"), (*VERL, "--force", "--output")])
def test_a_folder_that_is_not_there_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    said = refusal(*words, str(tmp_path / "absent" / "new.yaml"))
    assert f"there is no folder {tmp_path}/absent" in said


def test_a_token_is_not_written_over_a_folder(tmp_path: Path) -> None:
    trinity("certs", str(tmp_path / "made"))
    key = str(tmp_path / "made" / "authority" / "token-signing.key")
    words = ["token", "--signing-key", key, "--subject", "eve", "--tenant", "a", "--scope", "read"]
    (tmp_path / "folder").mkdir()
    assert f"{tmp_path}/folder is a folder" in refusal(*words, "-o", str(tmp_path / "folder"))
    assert f"there is no folder {tmp_path}/absent" in refusal(
        *words, "-o", str(tmp_path / "absent" / "token")
    )
    assert {one.name for one in tmp_path.iterdir()} == {"made", "folder"}


@pytest.mark.parametrize("command", ["status", "log", "why", "view"])
def test_a_file_is_no_directory_of_a_run(command: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").touch()
    said = refusal(command, "--job-dir", str(tmp_path / "x.yaml"))
    assert said == f"{tmp_path}/x.yaml is a file: give the run's directory as `--job-dir`"
