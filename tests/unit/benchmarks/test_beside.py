"""The courses beside TRL and verl: what is kept, what is run again, and that settings are alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.algorithms.areas_document import lines_of_services
from benchmarks.algorithms.beside.__main__ import PARTS, missing_of
from benchmarks.algorithms.beside.course import ADDITION, EDITS, HINTED, SERVICES, Course, Courses
from benchmarks.algorithms.beside.grown import grown_weights
from benchmarks.algorithms.beside.ours import BENCH_TASKS, trial_of
from benchmarks.algorithms.beside.plain_verl import as_tensors, verl_settings
from benchmarks.algorithms.beside.services import config_values
from benchmarks.algorithms.job import EncodedProblems, TrialJob
from benchmarks.overhead.untrained_model import write_untrained_model
from services.trainer.types import RunReward, TrainRow
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config

COURSE = Course(
    contender="ours",
    algorithm="grpo",
    model=ADDITION,
    seed=1,
    num_rows=128,
    start=0.6,
    accuracies={4: 0.65, 8: 0.7},
    seconds={4: 3.5, 8: 7.0},
    wall_seconds={4: 5.0},
    whole_seconds=20.0,
)


def test_a_course_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "courses.jsonl"
    other = replace(COURSE, algorithm="gspo")
    for course in (COURSE, other):
        Courses(path).add(course)
    assert list(Courses(path).by_key.values()) == [COURSE, other]
    assert COURSE.end == 0.7


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    courses = Courses(tmp_path / "courses.jsonl")
    courses.add(COURSE)
    keys = missing_of("ours", courses, seeds=[1, 2])
    assert [(algorithm, seed) for _, algorithm, _, seed in keys] == [
        ("gspo", 1),
        ("cispo", 1),
        ("grpo", 2),
        ("gspo", 2),
        ("cispo", 2),
    ]
    assert len(missing_of("services", courses, seeds=[1])) == 4
    assert len(missing_of("large", courses, seeds=[1])) == 3


def test_verl_gets_the_settings_of_our_losses() -> None:
    arguments = {"clip_range": 0.2, "clip_range_low": None, "clip_range_high": 0.28}
    assert verl_settings(arguments) == {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    assert verl_settings({"clip_ratio_c": 3.0, "delta_sequence_masking": 0.1}) == {
        "clip_ratio_c": 3.0
    }


def a_job(work: Path) -> TrialJob:
    none = EncodedProblems(texts=[], rows=[], prompts_NP=np.zeros((0, 1), np.int64), answers=[])
    for name in ("train", "test"):
        path = work / f"made/data/{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"question": "1+1=", "answer": "2"}\n')
    return TrialJob(work=work, train=none, held_out=none)


@pytest.mark.parametrize("algorithm", PARTS["services"][2])
def test_the_services_get_a_plan_with_the_same_loss_and_size(
    tmp_path: Path, algorithm: str
) -> None:
    job = a_job(tmp_path)
    values = config_values(job, trial_of(algorithm), ADDITION, "one", seed=3, num_steps=20)
    (stage,) = plan_experiment(Config.model_validate(values)).stages
    own = job.plan(trial_of(algorithm), seed=3, num_rows=128, lag=0)
    assert stage.algorithm.policy_loss_fn_args == own.algorithm.policy_loss_fn_args
    assert stage.algorithm.loss_agg_mode == own.algorithm.loss_agg_mode
    assert (stage.num_rollout_rows, own.num_rollout_rows) == (128, 128)
    assert [stage.learning_rate(step) for step in range(1, 21)] == [
        own.learning_rate(step) for step in range(1, 21)
    ]


@pytest.mark.parametrize("model", [EDITS, HINTED])
def test_the_services_train_the_longer_task_as_the_loop_does(tmp_path: Path, model: str) -> None:
    prompts = np.zeros((1, 41), np.int64) if model == HINTED else None
    job = replace(a_job(tmp_path), task=BENCH_TASKS[model], hinted_prompts=prompts)
    for _, of_model, algorithms in PARTS.values():
        for algorithm in algorithms if of_model == model else ():
            trial = trial_of(algorithm, model)
            values = config_values(job, trial, model, "one", seed=3, num_steps=40)
            (stage,) = plan_experiment(Config.model_validate(values)).stages
            rows = 96 // 2 if trial.is_on_data else 96
            own = job.plan(trial, seed=3, num_rows=rows, lag=0)
            assert stage.algorithm == own.algorithm
            assert stage.config.trainer.ppo_epochs == own.config.trainer.ppo_epochs
            assert stage.train_batch_size == own.train_batch_size == rows


def test_a_line_compares_the_loop_with_the_services() -> None:
    ours = [
        replace(COURSE, model=EDITS, seed=seed, accuracies={4: 0.7, 8: end})
        for seed, end in enumerate((0.7, 0.8, 0.9))
    ]
    theirs = replace(ours[0], contender=SERVICES, start=0.5)
    assert list(lines_of_services([*ours, theirs]))[2:] == [
        "| grpo | 0.550 | 0.700 ± 0.062 | 0.650 |"
    ]


def a_row(tokens: list[int], reward: float, group: str) -> TrainRow:
    length = len(tokens) - 2
    return TrainRow(
        position=0,
        tokens=np.array(tokens, dtype=np.int32),
        prompt_length=2,
        mask=np.ones(length, dtype=np.bool_),
        rollout_logprobs=np.full(length, -1.0, dtype=np.float32),
        advantages=np.zeros(length, dtype=np.float32),
        run_reward=RunReward(assignment_id=group, run=0, reward=reward),
        versions=np.zeros(length, dtype=np.int32),
    )


def test_rows_of_several_lengths_become_tensors_with_the_reward_at_their_end() -> None:
    rows = [a_row([7, 8, 1], 1.0, "a"), a_row([7, 8, 1, 2, 3], 0.5, "b")]
    tokens_BL, mask_BT, old_BT, rewards_BT, groups = as_tensors(rows)
    assert tokens_BL.tolist() == [[7, 8, 1, 0, 0], [7, 8, 1, 2, 3]]
    assert mask_BT.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert torch.equal(old_BT, -mask_BT)
    assert rewards_BT.tolist() == [[1, 0, 0], [0, 0, 0.5]]
    assert groups.tolist() == ["a", "b"]


def test_a_grown_model_computes_what_the_small_one_does(tmp_path: Path) -> None:
    sizes = {"small": (16, 32, 2, 2), "large": (64, 48, 3, 8)}
    for number, (name, (hidden, inner, layers, heads)) in enumerate(sizes.items()):
        write_untrained_model(
            tmp_path / name,
            seed=number,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            initializer_range=0.5,
        )
    tokens_BT = torch.arange(24).reshape(2, 12)
    small, large = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32) for name in sizes
    )
    expected = small(tokens_BT).logits
    assert not torch.allclose(large(tokens_BT).logits, expected, atol=0.1)
    large.load_state_dict(grown_weights(tmp_path / "small", tmp_path / "large"), strict=False)
    found = large(tokens_BT).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    found.logsumexp(-1).mean().backward()
    assert (large.model.layers[2].self_attn.o_proj.weight.grad[:16] != 0).all()
