"""The commands of the page on configuration print what stands there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trinity.cli.main import make_app

ROOT = Path(__file__).parents[3]
SECTION = re.compile(r"^## What the commands print\n(.*?)^## ", re.DOTALL | re.MULTILINE)
MINE = """\
model: {model_path: Qwen/Qwen2.5-0.5B-Instruct, max_model_len: 2048}
trainer: {total_steps: 100}
monitor: {monitor_type: swanlab}
algorithm:
  advantage_fn: gpro
buffer:
  explorer_input: {taskset: {name: mine}}
"""


def shown() -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines below it."""
    section = SECTION.search((ROOT / "docs/configuration.md").read_text())
    assert section
    (block,) = re.findall(r"```console\n(\$ trinity.*?)```", section[1], re.DOTALL)
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, lines


SHOWN = list(shown())


@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_the_page_says(
    command: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    words = [name for word in command.split()[1:] for name in files(word)]
    printed = CliRunner().invoke(make_app(words), words).output.splitlines()
    for line in lines:
        assert line == "..." or line in printed, "\n".join(printed)


def files(word: str) -> list[str]:
    """As a shell reads it."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]
