"""Batches for both, and a step of a real learner held against the oracle's by number."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from services.trainer.types import RunReward, TrainBatch, TrainRow
from tests.integration.trainer.learners import critic_weights_of, gradients_and_figures
from tests.integration.trainer.oracle_cases import CASES, TERMS, Case
from tests.support.oracle.rows import Row
from tests.support.oracle.step import Models, Objective, Outcome, step
from tests.unit.trainer.builders import VOCABULARY, make_plan, save_tiny_model
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.algorithm_type import AlgorithmType
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

RUNS = (4, 4, 3, 1)
"""Of each group; every second run has two rows, as a workflow of several turns gives."""


def make_models(model: Path, folder: Path) -> Models:
    """A policy that has moved a little from the reference, and a teacher."""
    from transformers import AutoModelForCausalLM

    moved = AutoModelForCausalLM.from_pretrained(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    moved.save_pretrained(folder / "policy")
    teacher = save_tiny_model(folder / "teacher", seed=9, num_layers=3, num_kv_heads=1)
    return Models(policy=folder / "policy", reference=model, teacher=teacher)


def make_rows(models: Models) -> dict[str, list[Row]]:
    assert models.teacher is not None
    draw = np.random.default_rng(11)
    loaded = [models.language_model(path) for path in (models.policy, models.teacher)]
    rollouts = [
        _row(draw, loaded, prompt, group=group, run=4 * group + run)
        for group, num_runs in enumerate(RUNS)
        for prompt in [draw.integers(2, VOCABULARY, int(draw.integers(2, 9))).tolist()]
        for run in range(num_runs)
        for _ in range(1 + run % 2)
    ]
    data = [replace(_data(draw), weight=0.5 + 0.25 * (number % 4)) for number in range(12)]
    pairs = []
    for number in range(10):
        first = replace(data[number], mask=[True] * len(data[number].mask))
        answer = draw.integers(2, VOCABULARY, int(draw.integers(2, 9))).tolist()
        other = replace(
            first,
            tokens=first.tokens[: first.prompt_length] + answer,
            mask=[True] * len(answer),
            rollout=[0.0] * len(answer),
            weight=1.75 - first.weight,
        )
        pairs += [first, other]
    experts = [replace(row, is_expert=True, temperature=1.0) for row in data[:4]]
    return {
        "rollouts": rollouts,
        "experts": rollouts + experts,
        "data": data,
        "pairs": pairs,
    }


def _row(
    draw: np.random.Generator,
    models: list[torch.nn.Module],
    prompt: list[int],
    *,
    group: int,
    run: int,
) -> Row:
    """Sampled by policies of several ages: the older, the further from this one."""
    data = _data(draw, prompt)
    row = replace(data, temperature=0.5 + 0.25 * float(draw.integers(4)))
    policy, teacher = (
        _logprobs(model, row, temperature)
        for model, temperature in zip(models, (row.temperature, 1.0), strict=True)
    )
    age = run % 3
    return replace(
        row,
        rollout=[float(np.float32(x + 0.15 * (1 + age) * draw.normal())) for x in policy],
        teacher=[float(np.float32(x)) for x in teacher],
        reward=float(draw.choice([0.0, 0.25, 1.0])) if group != 2 else 0.5,
        weight=float(draw.choice([0.5, 1.0, 2.0])),
        group=group,
        run=run,
    )


def _data(draw: np.random.Generator, prompt: list[int] | None = None) -> Row:
    prompt = prompt or draw.integers(2, VOCABULARY, int(draw.integers(2, 9))).tolist()
    answer = draw.integers(2, VOCABULARY, int(draw.integers(2, 13))).tolist()
    mask = (draw.random(len(answer)) < 0.75).tolist()
    mask[int(draw.integers(len(answer)))] = True
    return Row(
        tokens=prompt + answer,
        prompt_length=len(prompt),
        mask=mask,
        rollout=[0.0] * len(answer),
    )


def _logprobs(model: torch.nn.Module, row: Row, temperature: float) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row.tokens])).logits[0] / temperature
    words = row.tokens[row.prompt_length :]
    places = range(row.prompt_length - 1, len(row.tokens) - 1)
    all_words = logits.log_softmax(-1)
    return [float(all_words[at, word]) for at, word in zip(places, words, strict=True)]


def samples_of(rows: list[Row]) -> Samples:
    steps = [sum(r.run == row.run for r in rows[:number]) for number, row in enumerate(rows)]
    return Samples(
        rewards=np.array([row.reward for row in rows]),
        groups=np.array([row.group for row in rows]),
        runs=np.array([row.run for row in rows]),
        steps=np.array(steps),
        lots=np.zeros(len(rows)),
        mean_logprobs=np.array([np.mean(row.rollout) for row in rows]),
        step_rewards=np.full(len(rows), np.nan),
        states=np.array([5 * row.group + step for row, step in zip(rows, steps, strict=True)]),
    )


def as_the_buffer_sends(rows: list[Row], plan: StagePlan) -> TrainBatch:
    """With the advantages of our own functions, where the trainer computes none."""
    algorithm, num_rollouts = plan.algorithm, sum(not row.is_expert for row in rows)
    found, left_out = np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
    if plan.has_rollouts and not algorithm.advantage_in_trainer:
        arguments = algorithm.advantage_fn_args
        of_groups = ADVANTAGES.get(algorithm.advantage_fn)(
            samples_of(rows[:num_rollouts]), **arguments
        )
        found[:num_rollouts] = of_groups.values
        if of_groups.left_out is not None:
            left_out[:num_rollouts] = of_groups.left_out
    is_pair = plan.algorithm.row_schema == "dpo"
    train_rows = [
        _train_row(row, number, float(found[number]), is_pair=is_pair)
        for number, row in enumerate(rows)
        if not left_out[number]
    ]
    return TrainBatch(step=1, rows=train_rows, metrics={}, replayed=False)


def _train_row(row: Row, number: int, advantage: float, *, is_pair: bool) -> TrainRow:
    return TrainRow(
        position=number // 2 if is_pair else number,
        tokens=np.array(row.tokens, dtype=np.int32),
        prompt_length=row.prompt_length,
        mask=np.array(row.mask),
        rollout_logprobs=np.array(row.rollout, dtype=np.float32),
        advantages=np.full(len(row.mask), advantage, dtype=np.float32),
        weight=row.weight,
        temperature=row.temperature,
        run_reward=RunReward(assignment_id=f"task {row.group}", run=row.run, reward=row.reward)
        if row.teacher
        else None,
        teacher_logprobs=np.array(row.teacher, dtype=np.float32) if row.teacher else None,
        versions=np.zeros(len(row.mask), dtype=np.int32) if row.teacher else None,
        side=("chosen", "rejected")[number % 2] if is_pair else None,
        is_expert=row.is_expert,
    )


def as_the_oracle_sees(rows: list[Row], case: Case) -> list[Row]:
    """With advantages by its own loops."""
    if case.group_advantage is None:
        return rows
    of_rollouts = [row for row in rows if not row.is_expert]
    values = case.group_advantage(samples_of(of_rollouts)).tolist()
    pairs = zip(of_rollouts, values, strict=True)
    valued = [replace(row, advantage=value) for row, value in pairs if value == value]
    return valued + [row for row in rows if row.is_expert]


@dataclass(frozen=True, slots=True)
class Bench:
    """Builds a learner as a stage does, and holds a step of it against the oracle."""

    ranks: "Ranks"
    models: Models
    rows: Mapping[str, list[Row]]
    known: dict[str, Outcome] = field(default_factory=dict)
    """Of algorithms as they are in the table: the same on every path."""

    def learner(self, plan: StagePlan) -> "Learner":
        from services.trainer.learner.learner import Learner

        policy = self.models.policy
        return Learner(
            plan=plan,
            model_directory=self.models.reference,
            ranks=self.ranks,
            teacher_directory=Path(plan.teacher_model_path) if plan.teacher_model_path else None,
            start_checkpoint=StartCheckpoint(
                policy=policy, critic=None, root=policy, is_whole=True
            ),
        )

    def plan(self, name: str, case: Case, trainer: Mapping[str, object]) -> StagePlan:
        algorithm = {"algorithm_type": name, **case.algorithm}
        if "distillation" in algorithm:
            algorithm["distillation"] = {
                "model_path": str(self.models.teacher),
                **case.algorithm["distillation"],  # type: ignore[dict-item]
            }
        if case.kind != "experts":
            return make_plan(self.models.reference, algorithm, trainer)
        declared: AlgorithmType = ALGORITHM_TYPES.get(name)
        given = {key: value for key, value in case.algorithm.items() if key in TERMS}
        plan = make_plan(
            self.models.reference, {"algorithm_type": "grpo", "repeat_times": 4, **given}, trainer
        )
        parts = {
            "policy_loss_fn": declared.policy_loss_fn,
            "policy_loss_fn_args": case.algorithm["policy_loss_fn_args"],
            "entropy_loss_fn": declared.entropy_loss_fn,
        }
        return plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update=parts)})

    def check(self, name: str, case: Case, trainer: Mapping[str, object]) -> None:
        plan = self.plan(name, case, trainer)
        rows = self.rows[case.kind]
        if case.objective.batch_loss is not None:  # theirs have no factors for single rows
            rows = [replace(row, weight=1.0) for row in rows]
        learner = self.learner(plan)
        expected = self.known.get(name) if case is CASES[name] else None
        if expected is None:
            expected = self._expected(learner, plan, rows, case)
        if case is CASES[name]:
            self.known[name] = expected
        gradients, figures = gradients_and_figures(learner, as_the_buffer_sends(rows, plan))
        assert_gradients(expected, gradients)
        assert_terms(expected, figures, case.objective)

    def _expected(
        self, learner: "Learner", plan: StagePlan, rows: list[Row], case: Case
    ) -> Outcome:
        critic: dict[str, torch.Tensor] | None = None
        if learner._roles.critic is not None:
            arrays = critic_weights_of(learner)
            critic = {key: torch.from_numpy(array) for key, array in arrays.items()}
        has_teacher = plan.teacher_model_path is not None
        models = replace(
            self.models, critic=critic, teacher=self.models.teacher if has_teacher else None
        )
        return step(as_the_oracle_sees(rows, case), models, case.objective)


def assert_gradients(expected: Outcome, found: Mapping[str, np.ndarray]) -> None:
    wanted = {f"actor/{name}": tensor for name, tensor in expected.actor.items()}
    wanted |= {f"critic/{name}": tensor for name, tensor in expected.critic.items()}
    assert wanted.keys() == found.keys()
    for role in ("actor/", "critic/"):
        arrays = {name: tensor.numpy() for name, tensor in wanted.items() if name.startswith(role)}
        largest = max((float(np.abs(array).max()) for array in arrays.values()), default=0.0)
        assert not arrays or largest > 1e-4, "a gradient of nothing shows nothing"
        for name, array in arrays.items():
            np.testing.assert_allclose(
                found[name], array, rtol=1e-4, atol=1e-5 * largest, err_msg=name
            )


def assert_terms(expected: Outcome, found: Mapping[str, float], objective: Objective) -> None:
    terms = {
        "actor/loss": expected.terms["loss"],
        "actor/kl_loss": expected.terms.get("kl_loss"),
        "actor/entropy_loss": objective.entropy_coef * expected.terms["entropy"],
        "actor/distillation_loss": expected.terms.get("distillation_loss"),
        "actor/entropy": expected.terms["mean entropy"],
        "actor/kl": expected.terms.get("mean kl"),
        "actor/distillation": expected.terms.get("mean distillation"),
        "critic/vf_loss": expected.terms["vf_loss"],
    }
    if objective.batch_loss is not None:  # ours are other losses with the same gradient
        del terms["actor/loss"], terms["actor/entropy"]
    for name, value in terms.items():
        if name in found and value is not None:
            assert found[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name
