"""Whoever starts a run hears of everything that has to be corrected, not of one thing a time."""

from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.run.launch.prepare import prepare_run

TEXT = """\
project: p
name: n
checkpoint_root_dir: {root}
model: {{model_path: /nowhere/model, max_prompt_tokens: 8, max_response_tokens: 8}}
algorithm: {{algorithm_type: {algorithm}}}
buffer:
  batch_size: {batch_size}
  total_steps: 1
  explorer_input:
    default_workflow_type: math_workflo
    taskset: {{path: /nowhere/data}}
"""


def refusal(directory: Path, *, algorithm: str = "grpo", batch_size: str = "4") -> str:
    file = directory / "x.yaml"
    file.write_text(TEXT.format(root=directory, algorithm=algorithm, batch_size=batch_size))
    with pytest.raises(UserError) as refused:
        prepare_run(file, None)
    return str(refused.value)


def test_keys_and_what_follows_from_them(tmp_path: Path) -> None:
    said = refusal(tmp_path, algorithm="grop", batch_size="many")
    assert "buffer.batch_size" in said and "did you mean `grpo`" in said


def test_model_data_and_names(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert "/nowhere/model" in said and "/nowhere/data" in said
    assert "close to it: math_workflow" in said
