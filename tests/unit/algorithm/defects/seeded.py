"""Defects that are put into sound code on purpose, each with the test that finds it.

python -m tests.unit.algorithm.defects.seeded    # writes the table of docs/algorithms.md
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.support.oracle import groups as references
from tests.unit.algorithm.advantage import test_formulas as group_formulas
from tests.unit.algorithm.kl import test_estimators as kl
from tests.unit.algorithm.policy_loss import cutting, test_examples, test_pairs, test_shares
from tests.unit.algorithm.policy_loss import test_against_formula as losses
from tests.unit.algorithm.policy_loss.batches import outcome, random_inputs
from tests.unit.algorithm.rollout_correction import test_correction as correction
from tests.unit.algorithm.token_advantage import test_against_formula as token_formulas
from tests.unit.algorithm.token_advantage import test_runs_and_references
from tests.unit.algorithm.token_advantage.batches import random_batch
from tests.unit.trainer import test_batch_rows as batch_rows
from tests.unit.trainer import test_cut_batches, test_prepared_batch, test_token_head
from tests.unit.trainer import test_rollouts as rollouts
from trinity.algorithm.aggregation import token_weights
from trinity.algorithm.policy_loss.ppo import ppo

PAGE = Path(__file__).parents[4] / "docs/algorithms.md"
_TABLE = re.compile(r"(<!-- seeded defects -->\n).*?(<!-- end of seeded defects -->)", re.DOTALL)
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A broken version of a function, and the test that fails with it."""

    what: str
    target: str
    """The dotted path of the function."""
    broken: Callable[..., Any]
    """Takes the sound function, then what it is called with."""
    found_by: Callable[[], None]

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Puts the broken function wherever the sound one is known."""
        owner, name, sound = _find(self.target)
        function = sound.__func__ if isinstance(sound, classmethod) else sound
        broken: Any = _calling(self.broken, function)
        if isinstance(sound, classmethod):
            broken = classmethod(broken)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(owner, name, broken))
            for module in _modules_that_know(name, sound):
                stack.enter_context(mock.patch.object(module, name, broken))
            yield


def _calling(broken: Function, sound: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        return broken(sound, *args, **kwargs)

    return call


def _find(target: str) -> tuple[Any, str, Any]:
    """Returns the module or class that defines a function, its name, and the function."""
    path, _, name = target.rpartition(".")
    try:
        owner: Any = importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, kind = path.rpartition(".")
        owner = vars(importlib.import_module(module))[kind]
    return owner, name, vars(owner)[name]


def _modules_that_know(name: str, sound: object) -> list[Any]:
    return [
        module
        for path, module in list(sys.modules.items())
        if path.startswith(("trinity.", "services.", "tests.")) and vars(module).get(name) is sound
    ]


def parts_add_up_to_the_batch() -> None:
    """Two micro-batches have the gradient of one."""
    inputs = random_inputs(3, num_rows=6)
    whole = outcome(ppo, inputs)
    draw = np.random.default_rng(0)
    parts = cutting.outcome_in_parts(ppo, inputs, [[0, 1], [2, 3, 4, 5]], "token-mean", draw)
    torch.testing.assert_close(parts.gradient_BT, whole.gradient_BT)


def of_tokens(check: Callable[[Any], None]) -> Callable[[], None]:
    """The test of a token advantage on one batch."""

    def run() -> None:
        check(random_batch(1, gaps=True, largest_gap=3.0))

    run.__name__, run.__module__ = check.__name__, check.__module__
    return run


def called(check: Callable[..., None], *args: Any) -> Callable[[], None]:
    """One case of a test, by its parameters."""
    run = partial(inspect.unwrap(check), *args)
    run.__name__, run.__module__ = check.__name__, check.__module__  # type: ignore[attr-defined]
    return run


LOSS = "trinity.algorithm.policy_loss"
TOKEN = "trinity.algorithm.token_advantage"
GROUP = "trinity.algorithm.advantage"
TRAINER = "services.trainer"
PPO = called(losses.test_loss_and_gradient_are_the_formulas, "ppo", "token-mean", "stale")
GRPO = called(group_formulas.test_a_function_is_its_formula, "grpo", {}, references.grpo, "run", 0)
DPO = called(losses.test_dpo_is_the_mean_over_pairs, 0, 0.0)


def _flip_some(
    sound: Function, ratio_BT: torch.Tensor, advantages_BT: torch.Tensor, *rest: float
) -> Any:
    places_BT = torch.arange(advantages_BT.numel()).view_as(advantages_BT)
    flipped_BT = torch.where(places_BT % 10 < 3, -advantages_BT, advantages_BT)
    return sound(ratio_BT, flipped_BT, *rest)


def _of_micro_batch(
    sound: Function, mask_BT: torch.Tensor, mode: str, totals: Any, dtype: Any
) -> Any:
    own = replace(totals, num_tokens=int(mask_BT.sum()))
    return sound(mask_BT, mode, own, dtype)


def _over_all_rows(
    sound: Function, mask_BT: torch.Tensor, mode: str, totals: Any, dtype: Any
) -> Any:
    return sound(mask_BT, mode, replace(totals, num_sequences=len(mask_BT)), dtype)


def _untrained_end(sound: Function, *given: Any) -> Any:
    row = sound(*given)
    mask = row.mask.copy()
    mask[-1:] = False
    return replace(row, mask=mask)


def _tools_trained(sound: Function, self: Any, arrays: Any, dtype: type) -> Any:
    return self.is_token_BT.copy() if dtype is np.bool_ else sound(self, arrays, dtype)


def _kept_instead(sound: Function, advantages: Any, *args: Any, **kwargs: Any) -> Any:
    found = sound(advantages, *args, **kwargs)
    return found if found.left_out is None else replace(found, left_out=~found.left_out)


def _shifted(sound: Function, self: Any, size: int) -> Iterator[Any]:
    rolled = replace(self, logprobs_SK=self.logprobs_SK.roll(1, 0))
    yield from sound(rolled, size)


def _own_teacher(sound: Function, self: Any, need: str) -> Any:
    return self.logprobs_BT if need == "teacher" else sound(self, need)


DEFECTS: dict[str, Defect] = {
    "shift": Defect(
        what="old log-probabilities are those of the token before",
        target=f"{LOSS}.ratio.log_ratio",
        broken=lambda sound, inputs: sound(
            replace(inputs, old_logprobs_BT=inputs.old_logprobs_BT.roll(1, -1))
        ),
        found_by=PPO,
    ),
    "signs": Defect(
        what="30 % of the advantages have the wrong sign",
        target=f"{LOSS}.ppo._dual_clipped",
        broken=_flip_some,
        found_by=PPO,
    ),
    "inverted ratio": Defect(
        what="the ratio is p_old / p",
        target=f"{LOSS}.ratio.log_ratio",
        broken=lambda sound, inputs: -sound(inputs),
        found_by=PPO,
    ),
    "mask": Defect(
        what="tokens of tools and users are trained on",
        target=f"{TRAINER}.learner.prepared_batch.ResponseLayout.stack",
        broken=_tools_trained,
        found_by=test_prepared_batch.test_a_matrix_begins_with_each_rows_first_response_token,
    ),
    "end token": Defect(
        what="the last token of an answer is never trained on",
        target=f"{TRAINER}.batch_rows._from_experience",
        broken=_untrained_end,
        found_by=batch_rows.test_the_mask_and_the_temperature_are_the_samples,
    ),
    "temperature": Defect(
        what="log-probabilities are compared at temperature 1, whatever the rollout's was",
        target=f"{TRAINER}.batch_rows._from_experience",
        broken=lambda sound, *given: replace(sound(*given), temperature=1.0),
        found_by=batch_rows.test_the_mask_and_the_temperature_are_the_samples,
    ),
    "normaliser of tokens": Defect(
        what="`token-mean` divides by the tokens of the micro-batch",
        target="trinity.algorithm.aggregation.token_weights",
        broken=_of_micro_batch,
        found_by=parts_add_up_to_the_batch,
    ),
    "normaliser of rows": Defect(
        what="`seq-mean` divides by rows that have nothing to train on as well",
        target="trinity.algorithm.aggregation.token_weights",
        broken=_over_all_rows,
        found_by=called(
            losses.test_loss_and_gradient_are_the_formulas, "ppo", "seq-mean-token-mean", "stale"
        ),
    ),
    "experts' normaliser": Defect(
        what="expert rows and rollouts share one mean",
        target="trinity.algorithm.aggregation.token_weights_by_row_kind",
        broken=lambda _, rows, mode, __, totals, dtype: token_weights(
            rows.mask_BT, mode, totals, dtype
        ),
        found_by=test_shares.test_expert_rows_are_averaged_among_themselves_where_the_loss_says_so,
    ),
    "reference": Defect(
        what="DPO compares with the old policy in place of the reference",
        target=f"{LOSS}.pairs.sums_over_reference",
        broken=lambda sound, inputs: sound(
            replace(inputs, reference_logprobs_BT=inputs.old_logprobs_BT)
        ),
        found_by=DPO,
    ),
    "sides": Defect(
        what="the rejected answer of a pair is taken for the chosen one",
        target=f"{LOSS}.pairs._pairs",
        broken=lambda sound, values_B: sound(values_B).flip(-1),
        found_by=called(test_pairs.test_a_loss_of_pairs_is_the_mean_of_its_formula, "simpo", 0),
    ),
    "divergence": Defect(
        what="the KL term has policy and reference the wrong way round",
        target="trinity.algorithm.kl.estimators.k3",
        broken=lambda sound, policy_BT, reference_BT, *_: sound(reference_BT, policy_BT),
        found_by=called(
            kl.test_the_mean_gradient_over_old_samples_is_the_divergences, "corrected_k3"
        ),
    ),
    "group mix-up": Defect(
        what="a task's rollouts are compared with the mean of the next task",
        target=f"{GROUP}.samples.Samples.group_baselines",
        broken=lambda sound, self, values_N: np.roll(sound(self, values_N), 1),
        found_by=GRPO,
    ),
    "group mix-up in the trainer": Defect(
        what="the same, in the trainer",
        target=f"{TOKEN}.masked.Groups.means_B",
        broken=lambda sound, self, values_B: np.roll(sound(self, values_B), 1),
        found_by=of_tokens(token_formulas.test_asymre_shifts_the_mean_but_not_for_a_row_alone),
    ),
    "biased deviation": Defect(
        what="GRPO divides by the standard deviation of the population",
        target=f"{GROUP}.samples.Samples.group_deviations",
        broken=lambda sound, self, values_N, **_: sound(self, values_N, ddof=0),
        found_by=GRPO,
    ),
    "dynamic sampling": Defect(
        what="groups with differences are left out in place of those without",
        target=f"{GROUP}.groups.filter_low_std_groups",
        broken=_kept_instead,
        found_by=called(
            group_formulas.test_groups_without_enough_spread_are_left_out_with_a_reason, "grpo"
        ),
    ),
    "stale versions": Defect(
        what="a token counts as one step younger than it is",
        target=f"{TRAINER}.learner.advantages.staleness_of",
        broken=lambda sound, rows, step, width: sound(rows, step - 1, width),
        found_by=rollouts.test_the_weights_that_the_step_starts_from_are_of_age_0,
    ),
    "detached term": Defect(
        what="the KL term is measured, and has no gradient",
        target="trinity.algorithm.kl.estimators.k3",
        broken=lambda sound, policy_BT, reference_BT, *_: sound(policy_BT, reference_BT).detach(),
        found_by=called(
            kl.test_the_mean_gradient_over_old_samples_is_the_divergences, "corrected_k3"
        ),
    ),
    "clip bounds": Defect(
        what="the bounds for falling and rising ratios are swapped",
        target=f"{LOSS}.ratio.clip_bounds",
        broken=lambda sound, *args: sound(*args)[::-1],
        found_by=test_examples.test_asymmetric_clipping_uses_both_bounds,
    ),
    "optimistic clip": Defect(
        what="of plain and clipped loss the smaller one counts",
        target=f"{LOSS}.ppo._dual_clipped",
        broken=lambda sound, ratio_BT, advantages_BT, *rest: sound(ratio_BT, -advantages_BT, *rest),
        found_by=called(test_examples.test_ppo_clips_only_what_would_go_further, 1.5, 1.0, -1.2),
    ),
    "bootstrap": Defect(
        what="GAE takes the next position's value, also after the end and in the gaps",
        target=f"{TOKEN}.recurrence.next_values",
        broken=lambda _, values_BT, __: np.roll(values_BT, -1, axis=1),
        found_by=token_formulas.test_sixteen_thousand_tokens_agree_with_one_step_at_a_time,
    ),
    "discounted gaps": Defect(
        what="tokens of tools discount what comes after them",
        target=f"{TOKEN}.recurrence.discounted_sums",
        broken=lambda sound, terms_BT, mask_BT, discount: (
            sound(np.where(mask_BT, terms_BT, 0.0), np.ones_like(mask_BT), discount) * mask_BT
        ),
        found_by=token_formulas.test_sixteen_thousand_tokens_agree_with_one_step_at_a_time,
    ),
    "whitening": Defect(
        what="padding enters mean and standard deviation",
        target=f"{TOKEN}.masked.whitened",
        broken=lambda sound, values_BT, mask_BT: (
            sound(np.where(mask_BT, values_BT, 0.0), np.ones_like(mask_BT)) * mask_BT
        ),
        found_by=of_tokens(token_formulas.test_unmasked_ppo_runs_over_every_response_token),
    ),
    "place of the reward": Defect(
        what="the reward goes to the last token, trained on or not",
        target=f"{TRAINER}.learner.advantages.RolloutRows.rewards",
        broken=lambda sound, self, _: sound(self, self.layout.is_token_BT),
        found_by=rollouts.test_a_mask_that_leaves_less_moves_the_reward_to_what_is_left,
    ),
    "teacher": Defect(
        what="the student is its own teacher",
        target=f"{TOKEN}.token_batch.TokenBatch.needed",
        broken=_own_teacher,
        found_by=of_tokens(token_formulas.test_on_policy_distillation_pulls_towards_the_teacher),
    ),
    "teacher's shift": Defect(
        what="the policy is compared with the teacher's distribution at the token before",
        target="trinity.algorithm.teacher_divergence.TeacherTokens.split",
        broken=_shifted,
        found_by=called(
            test_token_head.test_each_token_is_compared_with_what_the_teacher_shows_there, "reverse"
        ),
    ),
    "teacher's direction": Defect(
        what="forward and reverse divergence are exchanged",
        target="trinity.algorithm.teacher_divergence.divergence",
        broken=lambda sound, logprobs_SV, teacher, direction: sound(
            logprobs_SV, teacher, "forward" if direction == "reverse" else "reverse"
        ),
        found_by=called(
            test_token_head.test_each_token_is_compared_with_what_the_teacher_shows_there, "forward"
        ),
    ),
    "teacher's temperature": Defect(
        what="the policy at temperature 1 is compared with the teacher at the rollout's",
        target=f"{TRAINER}.backend.token_head.TokenHead._outputs",
        broken=lambda sound, self, hidden, labels_S, temperatures_S, *rest: sound(
            self, hidden, labels_S, torch.ones_like(temperatures_S), *rest
        ),
        found_by=called(
            test_token_head.test_each_token_is_compared_with_what_the_teacher_shows_there, "reverse"
        ),
    ),
    "correction": Defect(
        what="importance weights are measured, and do not weigh",
        target=f"{LOSS}.contributions.loss_contribution",
        broken=lambda sound, loss, rows, totals, mode, *_: sound(loss, rows, totals, mode),
        found_by=test_shares.test_factors_multiply_tokens_and_their_geometric_mean_rows,
    ),
    "inverted correction": Defect(
        what="importance weights are rollout over trainer",
        target="trinity.algorithm.rollout_correction.correction.importance_weights",
        broken=lambda sound, log_ratio_BT, *args, **kwargs: sound(-log_ratio_BT, *args, **kwargs),
        found_by=correction.test_truncation_cuts_large_ratios_down_and_leaves_small_ones,
    ),
    "rows of an update": Defect(
        what="an update has the advantages of the rows before its own",
        target=f"{TRAINER}.learner.prepared_batch.PreparedBatch.select_rows",
        broken=lambda sound, self, numbers_N: replace(
            sound(self, numbers_N), advantages_BT=self.advantages_BT[numbers_N - 1]
        ),
        found_by=called(
            test_cut_batches.test_an_update_has_neighbours_and_what_belongs_to_them, 2, [5, 6]
        ),
    ),
    "normaliser of an update": Defect(
        what="an update counts the rows and tokens of the whole step",
        target=f"{TRAINER}.learner.prepared_batch.PreparedBatch.cut",
        broken=lambda sound, self, num_updates: [
            replace(part, prepared=self) for part in sound(self, num_updates)
        ],
        found_by=test_cut_batches.test_an_update_is_divided_by_its_own_rows_and_tokens,
    ),
    "split run": Defect(
        what="of a run of several samples only the mean change counts",
        target=f"{TOKEN}.units.Units.sums_U",
        broken=lambda sound, self, values_B: sound(self, values_B) / np.maximum(self.sizes_U, 1),
        found_by=called(
            test_runs_and_references.test_kto_has_the_gradient_of_its_loss,
            test_runs_and_references.split_runs(1),
            "run",
            None,
        ),
    ),
}
"""By name."""


def table() -> str:
    """Returns the table of the documentation."""
    lines = ["| defect | what is wrong | found by |", "|---|---|---|"]
    for name, defect in DEFECTS.items():
        module = defect.found_by.__module__.rpartition(".")[2].replace("__main__", "seeded")
        test = f"{module}: {_sentence(defect.found_by)}"
        lines.append(f"| {name} | {defect.what} | {test} |")
    return "\n".join(lines) + "\n"


def _sentence(check: Callable[[], None]) -> str:
    return check.__name__.removeprefix("test_").replace("_", " ")


def with_table(text: str) -> str:
    """Returns the page with the table of today."""
    return _TABLE.sub(lambda found: f"{found[1]}{table()}{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
