"""A file with several kinds of mistakes is told of all of them at once, with their lines."""

from pathlib import Path

import pytest

from trinity.cli.config_check import check_on_machine

PLAIN = """
model: {model_path: /m, max_model_len: 24}
buffer:
  batch_size: 4
  total_steps: 3
  explorer_input: {taskset: {path: /d, default_workflow_type: simple_workflow}}
"""
CASES = {
    "an item of a list that is no section hides no other mistake": (
        PLAIN
        + "algorithm: {algorithm_type: grpo, advantage_fn: grpoo, kl_loss_fn: k9}\n"
        + "data_processor:\n"
        + "  experience_pipeline: {operators: [{name: reward_filtr}, {args: {}}, a_text]}\n",
        [
            ":9 must be a section of keys, not 'a_text'",
            ":7: stage `main`: `algorithm.advantage_fn: grpoo` is not supported",
            ":7: stage `main`: `algorithm.kl_loss_fn: k9` is not supported",
            "did you mean `reward_filter`?",
            "`data_processor.experience_pipeline.operators[1].name` is missing",
        ],
    ),
    "a stage without a name hides no mistake of others": (
        PLAIN
        + "stages:\n- {stage_name: a, algorithm: {algorithm_type: grppo}}\n"
        + "- {stage_name: a, mode: wrong}\n- {mode: both}\n- a_text\n",
        [
            "`stages[1].mode` in ",
            "`stages[2].stage_name` is missing in ",
            "`stages[3]` in ",
            "two of `stages` are called `a`",
            ":8: stage `a`: `algorithm.algorithm_type: grppo` is not supported",
        ],
    ),
    "a number as a key": (PLAIN + "trainer: {3: 4}\n", ["unknown key `3` of `trainer` in "]),
    "a value that is taken from itself": (
        PLAIN + "name: ${name}\nmode: wrong\n",
        ["`name` in ", ":7: it takes its value from itself: write a value", "`mode` in "],
    ),
    "a quote that is not closed": (
        "project: 'a\nmodel: {model_path: /m}\n",
        [":3 is not valid YAML", "(it begins in line 1)"],
    ),
    "too many mistakes of one list": (
        PLAIN + "algorithm: {optimizer: {betas: [0.9, x]}, advantage_fn: grpoo}\n",
        ["`algorithm.optimizer.betas[1]` in ", "`algorithm.advantage_fn: grpoo` is not supported"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_all_mistakes_are_told_at_once(case: str, tmp_path: Path) -> None:
    text, told = CASES[case]
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    errors = "\n".join(check_on_machine(file, {}).errors)
    assert [part for part in told if part not in errors] == [], errors
