"""The tasks on which algorithms are compared, and what is made of their runs."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from benchmarks.algorithms.job import TrialJob, encoded, make_task, tool_tokens, without_tool
from benchmarks.algorithms.outcome import TrialRun
from benchmarks.algorithms.play import TaskPlayer, joined
from benchmarks.algorithms.report import areas_of
from benchmarks.algorithms.rollout import Rollout, Sampler
from benchmarks.algorithms.tasks import (
    EDITS,
    TASKS,
    BenchTask,
    added,
    drawer,
    edited,
    is_same_end,
    told,
)
from benchmarks.algorithms.trials import IN_EVERY_TASK, NOT_TRIED, all_trials, trials_of
from trinity.algorithm.types import ALGORITHM_TYPES


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_hasty_demonstrations_are_wrong_about_half_of_the_time(task: BenchTask) -> None:
    rng = random.Random(3)
    rows = [task.problem(rng) for _ in range(400)]
    right = sum(is_same_end(row["hasty"], row["answer"]) for row in rows) / len(rows)
    assert 0.4 < right < 0.75
    assert {len(row["question"]) for row in rows} == {task.max_prompt_tokens}
    lengths = [len(row[name]) for row in rows for name in ("answer", "hasty")]
    assert min(lengths) > 20
    assert max(lengths) < task.max_response_tokens


def test_an_addition_is_written_out_with_its_carries() -> None:
    assert added(347, 285, 3, lambda: False) == "7+5+0=12,4+8+1=13,3+2+1=6,632"
    assert added(347, 285, 3, lambda: True) == "7+5+0=12,4+8+0=12,3+2+0=5,522"
    assert added(904, 395, 3, lambda: False).endswith(",1299")
    draw = random.Random(0)
    for _ in range(200):
        first, second = draw.randrange(1000), draw.randrange(1000)
        written = int(added(first, second, 3, lambda: False).rpartition(",")[2])
        assert written == first + second


def test_edits_are_written_out_and_may_be_left_out() -> None:
    assert edited("abcdef", "RLXD", lambda: False) == "fedcba,edcbaf,fdcbae,fdbcae"
    assert edited("abcdef", "RR", lambda: True) == "abcdef,abcdef"
    for edit in EDITS.values():
        assert sorted(edit("abcdef")) == list("abcdef") != list(edit("abcdef"))


def test_only_the_end_of_an_answer_counts() -> None:
    assert is_same_end("1+1=3,12", "1+1=2,12")
    assert not is_same_end("1+1=2,13", "1+1=2,12")
    assert not is_same_end("", "1+1=2,12")


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the game of two turns."""
    made = tmp_path_factory.mktemp("drawers")
    small = BenchTask(
        name="drawers",
        what="few problems",
        problem=TASKS["drawers"].problem,
        max_prompt_tokens=6,
        max_response_tokens=32,
        game=TASKS["drawers"].game,
    )
    make_task(made / "made", small, seed=1)
    return made


@pytest.fixture(scope="module")
def job(game: Path) -> TrialJob:
    return TrialJob.prepared(game, TASKS["drawers"])


def test_what_the_tool_says_is_not_learned(job: TrialJob) -> None:
    row, text = job.train.rows[0], job.train.texts[0]
    answer = text["answer"]
    learned = "".join(
        letter for letter, is_own in zip(answer, row.mask[: len(answer)], strict=True) if is_own
    )
    assert answer == f"{answer[:4]}{told('', answer[:4])}{learned[4:]}"
    assert learned == answer[:4] + answer[7:]
    assert row.mask[-1], "the end is learned"
    asked, said = tool_tokens(job.untrained)
    (unit,) = encoded(job.formatter("sft"), [text])
    assert without_tool(unit, (asked, said))[0].mask.tolist() == row.mask.tolist()
    assert without_tool(unit, (asked, -1))[0].mask.all(), "no tool, all is learned"


class Scripted:
    """Stands in for a sampler: says what it is told to say."""

    def __init__(self, job: TrialJob, *turns: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(job.untrained)
        self._turns = list(turns)
        self.prompts: list[str] = []

    def sample(self, prompts_NP: np.ndarray, *_: object, **__: object) -> list[Rollout]:
        said = self._turns.pop(0)
        self.prompts += [self._tokenizer.decode(prompt) for prompt in prompts_NP]
        ends = "" if said.startswith("?") else "<|end|>"
        tokens = np.array(self._tokenizer(f"{said}{ends}")["input_ids"])
        return [
            Rollout(
                prompt=prompt,
                tokens=tokens,
                logprobs=np.full(len(tokens), -1.0, dtype=np.float32),
                is_own=np.ones(len(tokens), dtype=np.bool_),
                swaps=np.zeros(len(tokens), dtype=np.int64),
            )
            for prompt in prompts_NP
        ]


def test_a_call_is_answered_and_the_second_turn_goes_on_from_there(job: TrialJob) -> None:
    question, answer = (job.train.texts[0][name] for name in ("question", "answer"))
    name = question[:2]
    player = TaskPlayer(job)
    sampler = Scripted(job, f"?{name};", answer[7:])
    (rollout,) = player.play(cast(Sampler, sampler), job.train, [0])
    first, second = sampler.prompts
    assert question in first
    assert second == f"{first}?{name};{drawer(name)}!"
    assert rollout.is_own.tolist() == [True] * 4 + [False] * 3 + [True] * (len(answer[7:]) + 1)
    assert rollout.logprobs[~rollout.is_own].tolist() == [0.0] * 3
    assert player.is_right(rollout, job.train, 0)
    wrong = Scripted(job, f"?{name};", f"{answer[7:]}9")
    assert not player.is_right(player.play(cast(Sampler, wrong), job.train, [0])[0], job.train, 0)


def test_an_answer_without_a_call_is_wrong_though_its_end_is_right(job: TrialJob) -> None:
    answer = job.train.texts[0]["answer"]
    player = TaskPlayer(job)
    (rollout,) = player.play(cast(Sampler, Scripted(job, answer[7:])), job.train, [0])
    assert not player.is_right(rollout, job.train, 0)


def test_a_sampler_stops_at_a_token(job: TrialJob) -> None:
    asked, _ = tool_tokens(job.untrained)
    sampler = Sampler(job.untrained)
    prompts_NP = job.train.prompts_NP[:64]
    generator = torch.Generator().manual_seed(1)
    rollouts = sampler.sample(prompts_NP, generator, max_tokens=60, stop=asked)
    stopped = [one.tokens.tolist() for one in rollouts if asked in one.tokens]
    assert stopped
    assert all(tokens.index(asked) == len(tokens) - 1 for tokens in stopped)


def test_two_turns_are_one_row() -> None:
    first = Rollout(
        prompt=np.array([1]),
        tokens=np.array([2, 3]),
        logprobs=np.array([-1.0, -2.0], dtype=np.float32),
        is_own=np.ones(2, dtype=np.bool_),
        swaps=np.array([0, 1]),
    )
    both = joined(first, np.array([4]), first)
    assert both.tokens.tolist() == [2, 3, 4, 2, 3]
    assert both.logprobs.tolist() == [-1.0, -2.0, 0.0, -1.0, -2.0]
    assert both.is_own.tolist() == [True, True, False, True, True]


def a_run(trial: str, curve: dict[int, float], *, lag: int = 0, seed: int = 1) -> TrialRun:
    run = TrialRun(trial=trial, lag=lag, seed=seed, num_steps=10, start=0.2)
    run.accuracies = curve
    return run


def test_the_area_is_the_mean_height_of_the_curve() -> None:
    assert a_run("grpo", {5: 0.4, 10: 0.6}).area == pytest.approx((0.3 * 5 + 0.5 * 5) / 10)
    early, late = a_run("a", {5: 0.6, 10: 0.6}), a_run("b", {5: 0.2, 10: 0.6})
    assert early.end == late.end
    assert early.area > late.area


def test_equal_curves_are_one_line_and_others_are_not() -> None:
    same, other = {5: 0.4, 10: 0.6}, {5: 0.4, 10: 0.61}
    runs = [a_run(name, curve) for name, curve in (("grpo", same), ("cispo", same), ("a", other))]
    assert [area.trials for area in areas_of(runs)] == [("grpo", "cispo"), ("a",)]
    assert [area.trials for area in areas_of([*runs, a_run("grpo", same, seed=2)])] == [
        ("grpo",),
        ("cispo",),
        ("a",),
    ]
    at_lags = [a_run("grpo", same, lag=lag) for lag in (0, 4)]
    assert [area.lag for area in areas_of(at_lags)] == [0, 4]


def test_an_interval_needs_seeds_and_tells_learning_from_chance() -> None:
    def area(*ends: float) -> SimpleNamespace:
        runs = [a_run("grpo", {10: end}, seed=seed) for seed, end in enumerate(ends)]
        (found,) = areas_of(runs)
        return SimpleNamespace(width=found.half_width, learns=found.learns)

    assert (area(0.6).width, area(0.6).learns) == (None, None)
    assert area(0.6, 0.61, 0.59).learns is True
    assert area(0.9, 0.2, 0.3).learns is False
    assert area(0.1, 0.11, 0.1).learns is False
    assert area(0.6, 0.61, 0.59).width == pytest.approx(4.303 * 0.005 / 3**0.5, rel=1e-3)


def test_the_first_task_compares_all_types_with_rollouts() -> None:
    first = trials_of("carries", first="carries")
    of_rollouts = {
        name
        for name in ALGORITHM_TYPES.builtins
        if ALGORITHM_TYPES.get(name).schema == "experience"
    }
    assert of_rollouts - set(NOT_TRIED) <= set(first)
    assert set(trials_of("edits", first="carries")) == set(IN_EVERY_TASK)
    assert set(all_trials()) & set(NOT_TRIED) == set()


@pytest.mark.parametrize("name", ["grpo", "vapo", "vocabulary_distill"])
def test_a_batch_of_the_tasks_is_trained_twice(job: TrialJob, name: str) -> None:
    plan = job.plan(all_trials()[name], seed=1, num_rows=16, lag=4)
    assert plan.config.trainer.ppo_epochs == 2
    assert plan.max_response_tokens == 32
    assert (plan.teacher_model_path is not None) == (name == "vocabulary_distill")
