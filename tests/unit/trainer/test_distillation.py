"""Student and teacher are compared at temperature 1, whatever rollouts were drawn at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.trainer.learner.preparation import BatchPreparation
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import TrainBatch
from tests.unit.trainer.builders import grpo_plan, random_batch
from trinity.algorithm.token_advantage.token_batch import FloatMatrix

AT_1, ELSEWHERE = -2.0, -0.5


class Policy:
    """Gives every token one log-probability at temperature 1 and another elsewhere."""

    def __init__(self) -> None:
        self.passes: list[set[float]] = []

    def compute_outputs(
        self, prepared: PreparedBatch, names: Sequence[str]
    ) -> dict[str, FloatMatrix]:
        self.passes.append({row.temperature for row in prepared.rows})
        value = AT_1 if self.passes[-1] == {1.0} else ELSEWHERE
        return dict.fromkeys(names, np.full(prepared.layout.shape, value))


def batch_at(temperature: float) -> TrainBatch:
    batch = random_batch(4, seed=1)
    rows = [
        replace(
            row,
            temperature=temperature,
            teacher_logprobs=np.full(row.response_length, -1.0, dtype=np.float32),
            rollout_logprobs=np.full(row.response_length, ELSEWHERE, dtype=np.float32),
        )
        for row in batch.rows
    ]
    return replace(batch, rows=rows)


def prepared_by(algorithm: str, batch: TrainBatch) -> tuple[PreparedBatch, Policy]:
    plan = grpo_plan(Path("/model"), algorithm_type=algorithm)
    policy = Policy()
    roles: Any = SimpleNamespace(actor=policy, reference=None, critic=None)
    return BatchPreparation(plan=plan, roles=roles).prepare_batch(batch, kl_coef=0.0), policy


def test_a_student_at_another_temperature_is_compared_at_1() -> None:
    prepared, policy = prepared_by("on_policy_distill", batch_at(0.5))
    assert {1.0} in policy.passes
    advantages = prepared.advantages_BT[prepared.mask_BT]
    assert np.allclose(advantages, -1.0 - AT_1)
    assert np.allclose(prepared.old_logprobs_BT[prepared.mask_BT], ELSEWHERE)


def test_a_student_at_1_needs_no_other_pass() -> None:
    prepared, policy = prepared_by("on_policy_distill", batch_at(1.0))
    assert len(policy.passes) <= 1
    assert "student" not in prepared.policy


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_no_other_algorithm_pays_for_it(algorithm: str) -> None:
    _, policy = prepared_by(algorithm, batch_at(0.5))
    assert {1.0} not in policy.passes
