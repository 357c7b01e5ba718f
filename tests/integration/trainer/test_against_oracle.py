"""Every algorithm, term and path of the learner has the loss and gradient of a plain loop.

The loop computes single rows with eager attention in float64 and has no code of ours.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from services.trainer.types import RunReward, TrainBatch, TrainRow
from tests.integration.trainer.learners import critic_weights_of, gradients_and_figures
from tests.support.oracle import advantages, groups, losses
from tests.support.oracle.advantages import by_group
from tests.support.oracle.rows import Row
from tests.support.oracle.step import Models, Objective, Outcome, step
from tests.unit.trainer.builders import VOCABULARY, make_plan, save_tiny_mixture, save_tiny_model
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
TERMS: Mapping[str, object] = {
    "kl_loss_fn_args": {"kl_coef": 0.3},
    "entropy_loss_fn_args": {"entropy_coef": 0.1},
}
OURS = partial(Objective, kl="k2", kl_coef=0.3, entropy_coef=0.1)
PLAIN = Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What our configuration asks for, and what it should be."""

    objective: Objective
    algorithm: Mapping[str, object] = field(default_factory=dict)
    group_advantage: groups.Formula | None = None
    kind: str = "rollouts"


def of_runs(formula: groups.Formula) -> groups.Formula:
    return lambda samples: groups.by_run(samples, formula)


GRPO = of_runs(groups.grpo)
WIDE = {"policy_loss_fn_args": {"clip_range_low": 0.05, "clip_range_high": 0.08}}
BY_ROW = "seq-mean-token-mean"
SUMS = "seq-mean-token-sum"
CASES: dict[str, Case] = {
    "ppo": Case(
        objective=OURS(
            advantage=advantages.ppo, returns=partial(advantages.returns, gamma=1, lam=1)
        ),
        algorithm=TERMS,
    ),
    "vapo": Case(
        objective=PLAIN(
            row_loss=partial(losses.ppo, high=0.28),
            advantage=partial(advantages.vapo, alpha=0.2, least=0.4),
            returns=partial(advantages.returns, gamma=1, lam=1),
        ),
        algorithm={"advantage_fn_args": {"alpha": 0.2, "least_lam": 0.4}},
    ),
    "pf_ppo": Case(
        objective=PLAIN(
            kl="k2",
            kl_coef=0.3,
            advantage=partial(advantages.pf_ppo, power=2.0),
            returns=partial(advantages.returns, gamma=1, lam=1),
        ),
        algorithm={"kl_loss_fn_args": {"kl_coef": 0.3}},
    ),
    "grpo": Case(objective=OURS(), algorithm=TERMS, group_advantage=GRPO),
    "grpo_verl": Case(objective=OURS(advantage=by_group(advantages.grpo)), algorithm=TERMS),
    "dr_grpo": Case(
        objective=PLAIN(mode="seq-mean-token-sum-norm"), group_advantage=of_runs(groups.dr_grpo)
    ),
    "dapo": Case(
        objective=PLAIN(entropy_coef=0.1, row_loss=partial(losses.ppo, high=0.28)),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=groups.without_equal(GRPO),
    ),
    "maxrl": Case(objective=PLAIN(), group_advantage=of_runs(groups.maxrl)),
    "gfpo": Case(
        objective=PLAIN(
            advantage=by_group(partial(advantages.gfpo, num_kept=3)),
        ),
        algorithm={"advantage_fn_args": {"num_kept": 3}},
    ),
    "gvpo": Case(
        objective=PLAIN(batch_loss=partial(advantages.gvpo_loss, beta=0.3), mode=SUMS),
        algorithm={"advantage_fn_args": {"beta": 0.3}},
    ),
    "kto": Case(
        objective=PLAIN(
            batch_loss=partial(advantages.kto_loss, beta=0.3, good=1.5, bad=0.5), mode=SUMS
        ),
        algorithm={
            "advantage_fn_args": {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}
        },
    ),
    "online_dpo": Case(
        objective=PLAIN(batch_loss=partial(advantages.online_dpo_loss, beta=0.3), mode=SUMS),
        algorithm={"advantage_fn_args": {"beta": 0.3}},
    ),
    "reinforceplusplus": Case(
        objective=OURS(advantage=advantages.reinforce_plus_plus), algorithm=TERMS
    ),
    "rloo": Case(objective=OURS(advantage=by_group(advantages.rloo)), algorithm=TERMS),
    "opmd": Case(
        objective=OURS(row_loss=partial(losses.opmd, tau=1.0)),
        algorithm=TERMS,
        group_advantage=of_runs(groups.opmd),
    ),
    "asymre": Case(
        objective=PLAIN(row_loss=partial(losses.opmd, tau=1.0)),
        group_advantage=of_runs(groups.asymre),
    ),
    "topr": Case(
        objective=OURS(row_loss=partial(losses.topr, threshold=0.0)),
        algorithm=TERMS,
        group_advantage=lambda samples: samples.rewards,
    ),
    "cispo": Case(
        objective=OURS(row_loss=partial(losses.cispo, low=1.0, high=0.28)),
        algorithm=TERMS,
        group_advantage=GRPO,
    ),
    "gspo": Case(
        objective=OURS(row_loss=partial(losses.gspo, low=0.05, high=0.08), mode=BY_ROW),
        algorithm={**TERMS, **WIDE},
        group_advantage=GRPO,
    ),
    "gspo_token": Case(
        objective=OURS(row_loss=partial(losses.gspo_token, low=0.05, high=0.08), mode=BY_ROW),
        algorithm={**TERMS, **WIDE},
        group_advantage=GRPO,
    ),
    "sapo": Case(
        objective=OURS(row_loss=partial(losses.sapo, positive=1.0, negative=1.05, detached=False)),
        algorithm=TERMS,
        group_advantage=GRPO,
    ),
    "dcpo": Case(
        objective=PLAIN(
            entropy_coef=0.1, row_loss=partial(losses.dcpo, low=0.16, high=0.2, c=10.0), mode=BY_ROW
        ),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=GRPO,
    ),
    "m2po": Case(
        objective=PLAIN(entropy_coef=0.1, threshold=0.04),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        group_advantage=GRPO,
    ),
    "sppo": Case(
        objective=PLAIN(row_loss=partial(losses.sppo, epsilon=0.3)),
        group_advantage=of_runs(groups.opmd),
    ),
    "rec": Case(
        objective=OURS(
            row_loss=partial(
                losses.rec,
                clip_mode="one-side",
                weight="importance_sampling",
                regularizer="k2",
                coef=0.05,
                temp=1.0,
            )
        ),
        algorithm={
            **TERMS,
            "policy_loss_fn_args": {
                "clip_mode": "one-side",
                "weight": "importance_sampling",
                "regularizer": "k2",
                "regularizer_coef": 0.05,
            },
        },
        group_advantage=of_runs(groups.rec),
    ),
    "raft": Case(
        objective=PLAIN(row_loss=losses.sft), group_advantage=of_runs(groups.above_the_mean)
    ),
    "mix": Case(
        objective=OURS(expert_loss=losses.sft, expert_share=0.3),
        algorithm={**TERMS, "policy_loss_fn_args": {"mu": 0.3}},
        group_advantage=GRPO,
        kind="experts",
    ),
    "mix_chord": Case(
        objective=OURS(expert_loss=partial(losses.sft_phi, cutoff=1.0), expert_share=0.4),
        algorithm={
            **TERMS,
            "policy_loss_fn_args": {"mu_warmup_steps": 2, "mu_peak": 0.8, "mu_valley": 0.1},
        },
        group_advantage=GRPO,
        kind="experts",
    ),
    "multi_step_grpo": Case(
        objective=OURS(), algorithm=TERMS, group_advantage=groups.step_wise_grpo
    ),
    "gigpo": Case(objective=OURS(), algorithm=TERMS, group_advantage=groups.gigpo),
    "on_policy_distill": Case(
        objective=PLAIN(advantage=partial(advantages.teachers, pull=lambda t, s: t - s))
    ),
    "sdpo": Case(objective=PLAIN(advantage=partial(advantages.teachers, pull=lambda t, s: t - s))),
    "grpo_distill": Case(
        objective=PLAIN(advantage=partial(advantages.grpo_with_teacher, coef=0.5)),
        algorithm={"advantage_fn_args": {"kl_coef": 0.5}},
    ),
    "vocabulary_distill": Case(
        objective=PLAIN(row_loss=losses.gpg, distillation_coef=0.7),
        algorithm={"distillation": {"coef": 0.7, "divergence": "reverse"}},
        group_advantage=lambda samples: 0 * samples.rewards,
    ),
    "jsd": Case(objective=PLAIN(advantage=partial(advantages.teachers, pull=advantages.jsd))),
    "jensen_shannon": Case(
        objective=PLAIN(advantage=partial(advantages.teachers, pull=advantages.jensen_shannon))
    ),
    "sft": Case(objective=PLAIN(row_loss=losses.sft), kind="data"),
    "cpt": Case(objective=PLAIN(row_loss=losses.sft), kind="data"),
    "dpo": Case(
        objective=PLAIN(pair_loss=partial(losses.dpo, beta=0.1), entropy_coef=0.1),
        algorithm={"entropy_loss_fn_args": {"entropy_coef": 0.1}},
        kind="pairs",
    ),
    "ipo": Case(
        objective=PLAIN(pair_loss=partial(losses.ipo, beta=0.1, normalized=True)), kind="pairs"
    ),
    "simpo": Case(
        objective=PLAIN(pair_loss=partial(losses.simpo, beta=2.0, gamma=1.0)), kind="pairs"
    ),
    "orpo": Case(objective=PLAIN(pair_loss=partial(losses.orpo, beta=0.1)), kind="pairs"),
}
PATHS: dict[str, Mapping[str, object]] = {
    "padded": {"use_remove_padding": False},
    "cut": {"max_token_len_per_gpu": 64},
    "padded and cut": {"use_remove_padding": False, "max_token_len_per_gpu": 64},
    "chunked head": {"use_fused_kernels": True, "max_token_len_per_gpu": 80},
    "shared prompts": {"use_prefix_grouper": True},
    "shared prompts, cut, chunked and computed again": {
        "use_prefix_grouper": True,
        "max_token_len_per_gpu": 64,
        "entropy_from_logits_with_chunking": True,
        "enable_gradient_checkpointing": True,
    },
}
"""Ways of computing, beside packed rows in one call."""
OF_PATHS = ("grpo", "ppo", "dpo", "mix", "vocabulary_distill", "sft")
MODES = ("token-mean", "token-sum", SUMS, BY_ROW, "seq-mean-token-sum-norm")
KL_ESTIMATORS = ("k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3", "k1+", "k3+")
PROXIMAL = {"bypass_old_logprobs": False}


def grpo_with(objective: Objective, **algorithm: object) -> Case:
    """GRPO whose gradient has all terms."""
    return Case(objective=objective, algorithm={**TERMS, **algorithm}, group_advantage=GRPO)


TERM_CASES: dict[str, tuple[str, Case]] = {
    **{f"mode {m}": ("grpo", grpo_with(OURS(mode=m), loss_agg_mode=m)) for m in MODES[1:]},
    **{f"kl {kl}": ("grpo", grpo_with(OURS(kl=kl), kl_loss_fn=kl)) for kl in KL_ESTIMATORS},
    **{
        f"penalty {kl}": (
            "reinforceplusplus",
            Case(
                objective=PLAIN(
                    advantage=partial(advantages.reinforce_plus_plus, gamma=0.9),
                    penalty=kl,
                    penalty_coef=0.2,
                ),
                algorithm={
                    "kl_loss_fn": "none",
                    "kl_penalty_fn": kl,
                    "kl_penalty_fn_args": {"kl_coef": 0.2},
                    "advantage_fn_args": {"gamma": 0.9},
                },
            ),
        )
        for kl in ("k1", "k2", "low_var_kl")
    },
    "ratios to the policy before": ("grpo", grpo_with(OURS(old_is_policy=True), **PROXIMAL)),
    "correction": (
        "grpo",
        grpo_with(
            OURS(old_is_policy=True, largest_correction=1.1),
            **PROXIMAL,
            rollout_correction={"rollout_is": "token", "rollout_is_threshold": 1.1},
        ),
    ),
    "discounts": (
        "ppo",
        Case(
            objective=PLAIN(
                advantage=partial(advantages.ppo, gamma=0.9, lam=0.8),
                returns=partial(advantages.returns, gamma=0.9, lam=0.8),
                kl="k2",
                kl_coef=0.001,
            ),
            algorithm={"advantage_fn_args": {"gamma": 0.9, "lam": 0.8}},
        ),
    ),
    "forward distillation": (
        "vocabulary_distill",
        replace(
            CASES["vocabulary_distill"],
            objective=PLAIN(row_loss=losses.gpg, distillation_coef=0.7, distillation="forward"),
            algorithm={"distillation": {"coef": 0.7, "divergence": "forward"}},
        ),
    ),
}


@pytest.fixture(scope="module")
def models(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A policy that has moved a little from the reference, and a teacher."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("oracle")
    moved = AutoModelForCausalLM.from_pretrained(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    moved.save_pretrained(folder / "policy")
    teacher = save_tiny_model(folder / "teacher", seed=9, num_layers=3, num_kv_heads=1)
    return Models(policy=folder / "policy", reference=model, teacher=teacher)


@pytest.fixture(scope="module")
def rows(models: Models) -> dict[str, list[Row]]:
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
        oldest_version=0 if row.teacher else None,
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
        "critic/vf_loss": expected.terms["vf_loss"],
    }
    if objective.batch_loss is not None:  # ours are other losses with the same gradient
        del terms["actor/loss"]
    for name, value in terms.items():
        if name in found and value is not None:
            assert found[name] == pytest.approx(value, rel=2e-5, abs=1e-6), name


@pytest.fixture(scope="module")
def bench(ranks: "Ranks", models: Models, rows: dict[str, list[Row]]) -> Bench:
    return Bench(ranks, models, rows)


def test_the_oracle_loads_nothing_of_ours() -> None:
    """Formulas that come from the product would agree with it."""
    code = (
        "import sys, tests.support.oracle.step\n"
        "ours = [m for m in sys.modules if m.split('.')[0] in ('trinity', 'services', 'verl')]\n"
        "assert not ours, ours"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_algorithm_has_a_case() -> None:
    assert CASES.keys() == set(ALGORITHM_TYPES.names())


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_has_the_loss_and_gradient_of_its_formula(bench: Bench, name: str) -> None:
    bench.check(name, CASES[name], {})


@pytest.mark.parametrize("name", TERM_CASES)
def test_a_term_has_the_loss_and_gradient_of_its_formula(bench: Bench, name: str) -> None:
    bench.check(*TERM_CASES[name], {})


@pytest.mark.parametrize("name", OF_PATHS)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_computes_the_same_numbers(
    bench: Bench, path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.backend.token_head.CHUNK_TOKENS", 7)
    bench.check(name, CASES[name], PATHS[path])


@pytest.mark.parametrize("path", ["padded", "cut"])
def test_gates_have_the_gradients_of_their_own_losses(
    bench: Bench, path: str, tmp_path: Path
) -> None:
    mixture = save_tiny_mixture(tmp_path / "mixture")
    models = Models(policy=mixture, reference=mixture)
    coefs = {"router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}
    case = grpo_with(OURS(balance_coef=0.5, z_coef=0.1), **coefs)
    replace(bench, models=models, known={}).check("grpo", case, PATHS[path])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("grpo", {"kl_coef": 0.0}),
        ("grpo", {"entropy_coef": 0.0}),
        ("grpo", {"mode": BY_ROW}),
        ("ppo", {"returns": partial(advantages.returns, gamma=1, lam=0.9)}),
        ("dr_grpo", {"longest": 12}),
    ],
)
def test_a_wrong_formula_is_found(bench: Bench, name: str, wrong: dict[str, object]) -> None:
    """The control: the comparison sees one term."""
    case = CASES[name]
    changed = replace(case, objective=replace(case.objective, **wrong))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Not equal"):
        bench.check(name, changed, {})


def without_entropys_gradient(sound: Callable[..., Any]) -> Callable[..., Any]:
    def outputs(*args: Any) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = sound(*args)
        return {**found, "entropy": found["entropy"].detach()}

    return outputs


def with_rows_alike(**changes: float) -> Callable[..., Any]:
    """Of the builder of micro-batches: all rows have one weight, or one temperature."""

    def broken(sound: Callable[..., Any]) -> Callable[..., Any]:
        def tensors(*args: Any) -> dict[str, torch.Tensor]:
            made: dict[str, torch.Tensor] = sound(*args)
            return made | {k: torch.full_like(made[k], v) for k, v in changes.items()}

        return tensors

    return broken


def with_columns(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Of the actor's matrices: another one of this name."""

    def broken(sound: Callable[..., Any]) -> Callable[..., Any]:
        def matrices(*args: Any) -> dict[str, np.ndarray]:
            made: dict[str, np.ndarray] = sound(*args)
            return made | {name: change(made[name])}

        return matrices

    return broken


def doubled(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: 2 * sound(*args, **kwargs)


def detached(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: sound(*args, **kwargs).detach()


def detached_values(sound: Callable[..., Any]) -> Callable[..., Any]:
    def loss(inputs: Any, **args: Any) -> Any:
        return sound(replace(inputs, values_BT=inputs.values_BT.detach() + 0 * inputs.values_BT))

    return loss


def at_the_first_token(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: np.flip(sound(*args), axis=-1)


def of_all_rows(sound: Callable[..., Any]) -> Callable[..., Any]:
    def totals(self: Any, mask_BT: np.ndarray, longest: int) -> Any:
        return sound(self, np.ones_like(mask_BT), longest)

    return totals


LEARNER = "services.trainer.learner"
BUILDER = f"{LEARNER}.verl_calls.MicroBatchBuilder._row_tensors"
MATRICES = f"{LEARNER}.actor._matrices"
DEFECTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "entropy without gradient": (
        "grpo",
        "services.trainer.backend.row_engine.token_outputs",
        without_entropys_gradient,
    ),
    "weights of rows lost": ("grpo", BUILDER, with_rows_alike(row_weights=1.0)),
    "weights of pairs lost": ("dpo", BUILDER, with_rows_alike(row_weights=1.0)),
    "temperature lost": ("grpo", BUILDER, with_rows_alike(temperature=1.0)),
    "old log-probabilities shifted": (
        "grpo",
        MATRICES,
        with_columns("old_logprobs", partial(np.roll, shift=1, axis=1)),
    ),
    "mask shifted": (
        "sft",
        MATRICES,
        with_columns("loss_mask", partial(np.roll, shift=1, axis=1)),
    ),
    "advantages negated": ("grpo", MATRICES, with_columns("advantages", np.negative)),
    "divergence without gradient": ("grpo", f"{LEARNER}.loss.BatchLoss._divergence", detached),
    "divergence twice": ("grpo", f"{LEARNER}.loss.BatchLoss._divergence", doubled),
    "values without gradient": ("ppo", f"{LEARNER}.roles.value_loss", detached_values),
    "reward at another token": (
        "reinforceplusplus",
        f"{LEARNER}.advantages.RolloutRows.rewards",
        at_the_first_token,
    ),
    "means over padding": (
        "grpo",
        f"{LEARNER}.prepared_batch.PreparedBatch.totals",
        of_all_rows,
    ),
    "reference is the policy": (
        "kto",
        f"{LEARNER}.roles.Reference.logprobs",
        lambda sound: lambda *args: 0 * sound(*args),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(
    bench: Bench, defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target, broken = DEFECTS[defect]
    owner, attribute = target.rsplit(".", 1)
    place = resolve_name(owner)
    monkeypatch.setattr(place, attribute, broken(getattr(place, attribute)))
    with pytest.raises(AssertionError, match="Not equal|gradient of nothing"):
        bench.check(name, CASES[name], {})
