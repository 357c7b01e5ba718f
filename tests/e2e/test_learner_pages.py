"""The commands of the pages for learners, typed in an empty folder, with fewer steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Launch
from tests.support.pages import blocks, write_files

pytestmark = [pytest.mark.timeout(2400), pytest.mark.thorough]

SHORTER = {
    "total_steps: 40": "total_steps: 2",
    "--max-steps 3": "--max-steps 1",
    "carry.yaml 20": "carry.yaml 2",
    "trinity why --config carry.yaml": "trinity --version",
    "trinity studio": "trinity --version",
}
"""Here the run has ended, and nothing holds it up; Studio, which stays until it is ended, is opened
by `test_guides_walked.py`."""
WARMED = "checkpoints/examples/addition/stages/sft_warmup/weights/v400-1"


class Terminal:
    """A folder with the model of the demo, and a shell that finds `trinity`."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        (folder / WARMED).parent.mkdir(parents=True)
        (folder / WARMED).symlink_to(model)
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
        }

    def page(self, page: str) -> None:
        """Saves the files of a page."""
        write_files(page, self.folder)
        for file in self.folder.glob("*.yaml"):
            file.write_text(shorter(file.read_text()))

    def start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, *command: str) -> str:
        process = self.start(*command)
        said, _ = process.communicate()
        assert process.returncode == 0 and "Traceback" not in said, said
        return said


def shorter(text: str) -> str:
    for words, instead in SHORTER.items():
        text = text.replace(words, instead)
    return text


@pytest.fixture(scope="module")
def terminal(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    made = launch("learner").config.parent / "made"
    return Terminal(tmp_path_factory.mktemp("empty"), made / "model")


def test_the_first_task_is_typed(terminal: Terminal) -> None:
    terminal.page("docs/first-task.md")
    said = [terminal.type("bash", "-ec", shorter(b)) for b in blocks("docs/first-task.md", "sh")]
    assert "carry.yaml: ok" in said[1] and "[main] finished" in said[1]
    assert "learn/carry" in said[2]
    assert "step 2 of stage main" in said[3]
    (load,) = blocks("docs/first-task.md", "python")
    terminal.type(sys.executable, "-c", load)


def test_later_rewards_are_given_while_the_run_waits(terminal: Terminal) -> None:
    terminal.page("docs/first-task.md")
    terminal.page("docs/later-rewards.md")
    terminal.type(sys.executable, "make_tasks.py")
    start, give, *_ = blocks("docs/later-rewards.md", "sh")
    run = terminal.start("bash", "-ec", start)
    assert run.stdout is not None
    try:
        while " tasks, 4 steps" not in (line := run.stdout.readline()):
            assert line, "it ended"
        given = terminal.type("bash", "-ec", give)
        said, _ = run.communicate()
    finally:
        run.terminate()
        run.wait()
        run.stdout.close()
    assert run.returncode == 0, said
    numbers = [int(number) for number in re.findall(r"(\d+) rewards given", given)]
    assert sum(numbers) == 4 * 8 * 4 and "finished" in given, given


def test_the_ten_lines_of_python_in_the_readme_run(terminal: Terminal) -> None:
    terminal.page("docs/first-task.md")
    terminal.type(sys.executable, "make_tasks.py")
    small = (terminal.folder / "carry.yaml").read_text().replace("name: carry", "name: math")
    (terminal.folder / "math.yaml").write_text(small)
    (ten_lines,) = blocks("README.md", "python")
    said = terminal.type(sys.executable, "-c", ten_lines)
    assert "accuracy" in said or "held_out" in said, said
    assert (terminal.folder / "right.parquet").is_file()
