"""A plan's mistakes say where in the file they stand."""

from pathlib import Path

import pytest

from trinity.config.loading.source import ConfigSource, add_locations
from trinity.config.loading.yaml import key_lines
from trinity.errors import UserError
from trinity.run.launch.prepare import prepare_run

TEXT = """\
model: {model_path: /models/tiny}
algorithm:
  rollout_correction:
    rollout_rs: token_k9
stages:
  - stage_name: warm
    mode: train
  - stage_name: learn
    algorithm:
      advantage_fn: nothing
"""
SOURCE = ConfigSource(Path("x.yaml"), TEXT, key_lines(TEXT))


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("stage `learn`: `algorithm.advantage_fn: nothing` is not supported", "x.yaml:10"),
        ("stage `learn`: `algorithm.rollout_correction.rollout_rs`: what", "x.yaml:4"),
        ("stage `learn`: `algorithm.rollout_correction.rollout_is` weighs", "x.yaml:3"),
        ("stage `warm`: `algorithm.advantage_fn: nothing` is not supported", "x.yaml:2"),
        ("stage `warm`: `buffer.train_batch_size` is missing", "x.yaml"),
        ("two of `stages` are called `a`", "x.yaml"),
        ("two of `stages` are called `a` (`stages[1].stage_name`)", "x.yaml:8"),
    ],
)
def test_a_mistake_is_found_where_its_key_stands(sentence: str, place: str) -> None:
    assert add_locations(sentence, SOURCE, ["warm", "learn"]) == f"{place}: {sentence}"


def test_every_sentence_has_its_own_place() -> None:
    said = add_locations("`model.model_path` is bad\n`algorithm.x` too", SOURCE, [])
    assert said == "x.yaml:1: `model.model_path` is bad\nx.yaml:2: `algorithm.x` too"


def test_a_correction_that_cannot_be_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        """\
model: {model_path: /models/tiny, max_model_len: 24}
algorithm:
  algorithm_type: grpo
  bypass_old_logprobs: false
  rollout_correction:
    preset: geo_rs
    rollout_rs: seq_mean_k3
buffer:
  batch_size: 4
  total_steps: 10
  explorer_input: {default_workflow_type: simple_workflow, taskset: {path: /data/train.jsonl}}
"""
    )
    with pytest.raises(UserError) as refused:
        prepare_run(file, None)
    assert str(refused.value) == (
        f"{file}:5: stage `main`: `algorithm.rollout_correction.rollout_rs_threshold`: "
        "seq_mean_k3 takes one number, not '0.999_1.001'"
    )
