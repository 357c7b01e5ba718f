"""The process of task operators keeps its rows from what reads standard input."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.runtime.process.child_process import module_command

OPERATOR = """
import sys
from trinity.operators.tasks.task_rows import TaskChanges

def reads(rows):
    if sys.stdin.read():
        raise ValueError("it took rows")
    return TaskChanges()
"""


@pytest.mark.parametrize("name", ["", "reading_file.reads"])
def test_an_operator_that_reads_standard_input_takes_no_rows(tmp_path: Path, name: str) -> None:
    (tmp_path / "reading_file.py").write_text(OPERATOR)
    operators = (TaskOperator(name=name, args={}, is_own=True),) if name else ()
    pipeline = ResolvedTaskPipeline(operators=operators)
    lines = [
        json.dumps({"pipeline": pipeline.model_dump_json()}),
        '{"question": "1+1"}',
        '{"question": "1+2"}',
    ]
    done = subprocess.run(
        module_command("trinity.operators.tasks.worker", str(2**31)),
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, PLUGIN_DIRS_VARIABLE: str(tmp_path)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert json.loads(last)["counts"]["num_read"] == 2, (done.stdout, done.stderr)
