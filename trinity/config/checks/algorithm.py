"""Checks that the algorithm's parts, the rows and the workflows of a stage fit one another."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from trinity.algorithm.kl.controller import kl_controller
from trinity.algorithm.policy_loss import LOSSES_OF_SCHEMA, POLICY_LOSSES
from trinity.algorithm.signature import words_in
from trinity.algorithm.token_advantage import COMPARES_POLICIES, TOKEN_ADVANTAGES, needs_of
from trinity.algorithm.token_advantage.need import NEED_HINTS, Need
from trinity.config.checks.scorers import scorer_errors
from trinity.config.plan.algorithm import find_part
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.algorithm import DistillationConfig
from trinity.errors import UserError
from trinity.plugins import (
    BASELINE_WORKFLOWS,
    DISTILLATION_WORKFLOWS,
    SELF_DISTILLATION_WORKFLOWS,
    WORKFLOWS,
)
from trinity.user_code.adapted_part import AdaptedPart

TAUGHT_BY_LOSS = "vocabulary_distill"
"""An algorithm without any other aim than its teacher."""
MIXED_LOSSES = frozenset({"mix", "mix_chord"})

SUPERVISED_LOSSES = frozenset({"sft", "sft_is", "sft_phi"})
"""Losses that need neither rewards nor the log-probabilities of the rows' source."""
LOSSES_WITHOUT_RATIO = SUPERVISED_LOSSES | {"dro", "gpg", "kto", "opmd", "orpo", "simpo", "sppo"}
"""Losses whose gradient is not weighed by the ratio to the old log-probabilities."""
NEEDS_WITHOUT_REWARDS: frozenset[Need] = frozenset({"teacher", "reward_parts"})
"""Advantages that need these are computed from them alone, but for those below."""
ADVANTAGES_WITH_REWARDS = frozenset({"grpo_distill"})
"""Advantages that need something of the above and look at rewards as well."""
_OF_POLICY = frozenset({"logprobs_BT", "old_log_probs"})
_OF_OTHER_POLICIES = frozenset(
    {"rollout_logprobs_BT", "rollout_log_probs", "reference_logprobs_BT", "reference"}
)
"""Words by which an advantage asks for log-probabilities, ours and Trinity-RFT's."""
WORKFLOW_FIELDS: tuple[Need, ...] = ("teacher", "baselines")
WORKFLOWS_WITH_FIELD: Mapping[Need, frozenset[str]] = {
    "teacher": DISTILLATION_WORKFLOWS | SELF_DISTILLATION_WORKFLOWS,
    "baselines": BASELINE_WORKFLOWS,
}
"""Workflows that come with the system and bring more than rewards."""


def sampling_errors(plan: StagePlan) -> Iterator[str]:
    """Yields a sentence for each error."""
    strategy = plan.algorithm.sampling
    yield from _check_mixed_loss(plan, has_experts=strategy.expert_buffer is not None)
    if strategy.expert_buffer is not None:
        yield from _check_expert_buffer(plan, strategy.expert_buffer)
    if strategy.max_staleness is not None:
        yield from _check_max_staleness(plan, strategy.max_staleness)


def _check_mixed_loss(plan: StagePlan, *, has_experts: bool) -> Iterator[str]:
    loss, name = plan.algorithm.policy_loss_fn, plan.algorithm.sample_strategy
    is_mixed = loss in MIXED_LOSSES
    if is_mixed and not has_experts:
        yield (
            f"`algorithm.policy_loss_fn: {loss}` trains on rollouts and expert rows, and "
            f"`sample_strategy: {name}` brings no expert rows: give `sample_strategy: mix`"
        )
    if has_experts and not is_mixed and loss in POLICY_LOSSES.builtins:
        yield (
            f"`algorithm.sample_strategy: {name}` brings expert rows, on which `{loss}` does not "
            "train: give `policy_loss_fn: mix` or `mix_chord`"
        )


def _check_expert_buffer(plan: StagePlan, expert_buffer: str) -> Iterator[str]:
    names = [buffer.name for buffer in plan.auxiliary_buffers]
    if expert_buffer not in names:
        advice = ": give it, with its `path`"
        if names:
            advice = (
                ": name one of "
                + ", ".join(f"`{name}`" for name in names)
                + (" with `algorithm.sample_strategy_args.sft_dataset_name`")
            )
        yield (
            f"`algorithm.sample_strategy: {plan.algorithm.sample_strategy}` takes expert rows from "
            f"`buffer.trainer_input.auxiliary_buffers.{expert_buffer}`, which is missing{advice}"
        )


def _check_max_staleness(plan: StagePlan, max_staleness: int) -> Iterator[str]:
    """Checks the bound: between two versions the newest weights get older with each train step."""
    interval = plan.config.synchronizer.sync_interval
    if max_staleness < interval - 1:
        yield (
            f"`algorithm.sample_strategy_args.max_staleness: {max_staleness}` leaves out every row "
            f"of some steps, as `synchronizer.sync_interval: {interval}` lets even the newest "
            f"weights grow {interval - 1} steps old: give {interval - 1} or more"
        )


def check_algorithm(plan: StagePlan) -> None:
    """Runs all checks of a stage; raises UserError with a sentence for each error."""
    errors = [text for check in CHECKS for text in check(plan)]
    if errors:
        raise UserError("\n".join(errors))


def _check_kl_coefficients(plan: StagePlan) -> Iterator[str]:
    algorithm = plan.algorithm
    for part, name, arguments in (
        ("kl_penalty_fn", algorithm.kl_penalty_fn, algorithm.kl_penalty_fn_args),
        ("kl_loss_fn", algorithm.kl_loss_fn, algorithm.kl_loss_fn_args),
    ):
        if name != "none":
            call = partial(kl_controller, **arguments)  # type: ignore[arg-type]  # checked before
            yield from _errors_of(call, f"`algorithm.{part}_args`: ")


def _check_correction(plan: StagePlan) -> Iterator[str]:
    yield from _errors_of(plan.algorithm.rollout_correction.check)


def _check_advantage_args(plan: StagePlan) -> Iterator[str]:
    """Tries an advantage whose arguments are not its defaults; numpy is imported only then."""
    name, arguments = plan.algorithm.advantage_fn, plan.config.algorithm.advantage_fn_args
    usual = find_part("advantage_fn", name).signature.defaults if arguments else {}
    if all(argument in usual and usual[argument] == own for argument, own in arguments.items()):
        return

    from trinity.config.plan.trials import probe_advantage  # it imports numpy

    call = partial(probe_advantage, plan.algorithm)
    yield from _errors_of(call, f"`algorithm.advantage_fn: {name}`: ")


def _check_compared_policies(plan: StagePlan) -> Iterator[str]:
    """Refuses a user's advantage that later updates would take from the policy before the step."""
    algorithm, name = plan.algorithm, plan.algorithm.advantage_fn
    is_own = algorithm.advantage_in_trainer and name not in TOKEN_ADVANTAGES.builtins
    cause = _cause_of_updates(plan)
    if not cause or not is_own or name in COMPARES_POLICIES:
        return
    function = TOKEN_ADVANTAGES.get(name)
    words = words_in(function.source if isinstance(function, AdaptedPart) else function)
    if words & _OF_POLICY and words & _OF_OTHER_POLICIES:
        yield (
            f"`algorithm.advantage_fn: {name}` compares the policy with another one, once a step, "
            f"and with {cause} the policy moves within it: add the name to `COMPARES_POLICIES` of "
            "`trinity.algorithm.token_advantage`, so that each update calls it again, or train "
            "with one update a step"
        )


def _cause_of_updates(plan: StagePlan) -> str:
    """Returns the setting that allows several updates per step, or an empty text."""
    passes = plan.config.trainer.ppo_epochs
    if passes > 1:
        return f"`trainer.ppo_epochs: {passes}`"
    return "`buffer.train_step: explore_step`" if plan.trains_explore_steps else ""


def _check_kl_penalty(plan: StagePlan) -> Iterator[str]:
    algorithm = plan.algorithm
    if algorithm.kl_penalty_fn != "none" and not algorithm.advantage_in_trainer:
        yield (
            f"`algorithm.kl_penalty_fn: {algorithm.kl_penalty_fn}` changes rewards in the trainer, "
            f"after the buffer has made advantages of them with `{algorithm.advantage_fn}`: "
            "give `kl_loss_fn` instead, or an `advantage_fn` of the trainer such as `grpo_verl`"
        )
    elif (
        algorithm.kl_penalty_fn != "none"
        and needs_of(algorithm.advantage_fn) & NEEDS_WITHOUT_REWARDS
        and algorithm.advantage_fn not in ADVANTAGES_WITH_REWARDS
    ):
        yield (
            f"`algorithm.kl_penalty_fn: {algorithm.kl_penalty_fn}` changes the rewards of tokens, "
            f"at which `{algorithm.advantage_fn}` does not look: give `kl_loss_fn` instead"
        )


def _check_stale_recompute(plan: StagePlan) -> Iterator[str]:
    algorithm = plan.algorithm
    if algorithm.bypass_old_logprobs or algorithm.rollout_correction.is_on:
        return
    if cause := staleness_cause(plan):
        yield (
            "`algorithm.bypass_old_logprobs: false` forgets which weights made the rollouts, and "
            f"with {cause} they may be old: give `rollout_correction.preset: tis`, "
            "or `bypass_old_logprobs: true`"
        )


def _check_double_weighting(plan: StagePlan) -> Iterator[str]:
    algorithm = plan.algorithm
    weighs = algorithm.rollout_correction.rollout_is != "none"
    loss = algorithm.policy_loss_fn
    if weighs and algorithm.bypass_old_logprobs and _has_ratio(algorithm):
        yield (
            f"`algorithm.rollout_correction.rollout_is` weighs what the ratio of `{loss}` weighs "
            "already: give `bypass_old_logprobs: false`, or `rollout_is: none`"
        )


def _check_critic(plan: StagePlan) -> Iterator[str]:
    warmup = plan.config.trainer.critic_warmup
    if warmup and not plan.needs_critic:
        yield (
            f"`trainer.critic_warmup: {warmup}` keeps the policy still for a critic that "
            f"`{plan.algorithm.advantage_fn}` does not have: remove it, or give `advantage_fn: ppo`"
        )


def _check_critic_warmup(plan: StagePlan) -> Iterator[str]:
    warmup, steps = plan.config.trainer.critic_warmup, plan.total_train_steps
    if plan.needs_critic and steps is not None and warmup >= steps:
        yield (
            f"`trainer.critic_warmup: {warmup}` leaves none of the {steps} train steps to the "
            "policy: give fewer, or more steps"
        )


def _check_moving_reference(plan: StagePlan) -> Iterator[str]:
    interval = plan.config.algorithm.reference_interval
    decay = plan.config.algorithm.reference_decay
    if decay and not interval:
        yield (
            f"`algorithm.reference_decay: {decay}` is for a reference that moves: give "
            "`reference_interval`, the train steps between two moves"
        )
    if interval and not plan.needs_reference:
        yield (
            f"`algorithm.reference_interval: {interval}` moves a reference with which nothing is "
            "compared: remove it, or give `kl_loss_fn`"
        )
    elif interval and plan.lora is not None:
        yield (
            f"`algorithm.reference_interval: {interval}` moves a reference that is the policy's "
            "own model with its adapter off: remove it, or `model.lora_configs`"
        )


def _check_distillation(plan: StagePlan) -> Iterator[str]:
    distillation = plan.config.algorithm.distillation
    at = "`algorithm.distillation"
    if not distillation.model_path:
        usual = DistillationConfig()
        given = [
            name
            for name in DistillationConfig.model_fields
            if getattr(distillation, name) != getattr(usual, name)
        ]
        if plan.algorithm_type == TAUGHT_BY_LOSS:
            yield f"`{TAUGHT_BY_LOSS}` needs a teacher: name its model in {at}.model_path`"
        elif given:
            yield f"{at}.{given[0]}` is for a teacher: name its model in {at}.model_path`"
    elif plan.algorithm.row_schema in LOSSES_OF_SCHEMA:
        yield (
            f"{at}.model_path` teaches token by token, and `{plan.algorithm_type}` compares whole "
            "answers: remove it, or train with `sft` on the better ones"
        )
    elif plan.sequence_parallel_size > 1:
        yield (
            f"{at}.model_path` needs whole sequences: give "
            "`trainer.ulysses_sequence_parallel_size: 1`"
        )


def _check_loss_schema(plan: StagePlan) -> Iterator[str]:
    schema, loss = plan.algorithm.row_schema, plan.algorithm.policy_loss_fn
    if loss not in POLICY_LOSSES.builtins:
        return
    if any((schema == kind) != (loss in own) for kind, own in LOSSES_OF_SCHEMA.items()):
        yield (
            f"`algorithm.policy_loss_fn: {loss}` does not train on rows of "
            f"`{plan.algorithm_type}`: {_losses_for(schema)}"
        )
    elif schema in ("sft", "cpt") and loss not in SUPERVISED_LOSSES:
        yield (
            f"`algorithm.policy_loss_fn: {loss}` needs rewards, which rows of "
            f"`{plan.algorithm_type}` do not have: {_losses_for(schema)}"
        )


def _check_workflow_fields(plan: StagePlan) -> Iterator[str]:
    """Most of the workflows that come with the system bring rewards alone."""
    workflows = {
        taskset.workflow for taskset in plan.tasksets if taskset.workflow in WORKFLOWS.builtins
    }
    needs = needs_of(plan.algorithm.advantage_fn)
    for need in (need for need in WORKFLOW_FIELDS if need in needs):
        for workflow in sorted(workflows - WORKFLOWS_WITH_FIELD.get(need, frozenset())):
            known = "".join(f"`{name}` or " for name in sorted(WORKFLOWS_WITH_FIELD.get(need, ())))
            yield (
                f"`algorithm.advantage_fn: {plan.algorithm.advantage_fn}` needs "
                f"{NEED_HINTS[need]}: `{workflow}` does not, name {known}one of your own that does"
            )


def _check_teacher(plan: StagePlan) -> Iterator[str]:
    for workflow in sorted(
        {taskset.workflow for taskset in plan.tasksets} & DISTILLATION_WORKFLOWS
    ):
        if not plan.auxiliary_models:
            yield (
                f"`{workflow}` asks a teacher with the policy's tokenizer: give one in "
                "`explorer.auxiliary_models`"
            )
        elif plan.auxiliary_models[0].external is not None:
            yield (
                f"`{workflow}` asks the first of `explorer.auxiliary_models` for log-probabilities "
                f"of given tokens, which `{plan.auxiliary_models[0].name}`, as others serve it, "
                "does not tell: give a model with an engine of its own first"
            )


CHECKS: tuple[Callable[[StagePlan], Iterator[str]], ...] = (
    _check_kl_coefficients,
    _check_correction,
    _check_advantage_args,
    _check_compared_policies,
    _check_kl_penalty,
    _check_stale_recompute,
    _check_double_weighting,
    _check_critic,
    _check_critic_warmup,
    _check_moving_reference,
    _check_distillation,
    _check_loss_schema,
    sampling_errors,
    _check_workflow_fields,
    _check_teacher,
    scorer_errors,
)


def staleness_cause(plan: StagePlan) -> str:
    """Returns the setting that lets rollouts lag behind the trained weights, or an empty text."""
    sync, rows = plan.config.synchronizer, plan.rows_per_explore_step
    if plan.replay is not None and plan.replay.cooldown_steps is not None:
        return "`replay_buffer.reuse_cooldown_time`"
    if plan.has_dynamic_sync:
        return f"`synchronizer.sync_style: {sync.sync_style}`"
    if sync.sync_interval > 1:
        return f"`synchronizer.sync_interval: {sync.sync_interval}`"
    if sync.sync_offset > 0:
        return f"`synchronizer.sync_offset: {sync.sync_offset}`"
    if rows and not plan.trains_explore_steps and plan.num_rollout_rows % rows:
        share = f", {plan.num_rollout_rows} of them rollouts," if plan.num_expert_rows else ""
        size = f"`buffer.train_batch_size: {plan.train_batch_size}`{share}"
        return f"{size} of {rows} rows an explore step"
    return ""


def _has_ratio(algorithm: ResolvedAlgorithm) -> bool:
    """Returns True for a built-in loss with a ratio, and False for users' losses."""
    loss = algorithm.policy_loss_fn
    if loss == "rec":
        return "importance_sampling" in str(algorithm.policy_loss_fn_args["weight"])
    return loss in POLICY_LOSSES.builtins and loss not in LOSSES_WITHOUT_RATIO


def _losses_for(schema: str) -> str:
    if own := LOSSES_OF_SCHEMA.get(schema):
        return "give " + ", ".join(f"`{loss}`" for loss in own)
    if schema == "experience":
        return "give `ppo`, or `algorithm_type: dpo` with pairs of answers"
    return "give " + ", ".join(f"`{loss}`" for loss in sorted(SUPERVISED_LOSSES))


def _errors_of(call: Callable[[], object], where: str = "") -> Iterator[str]:
    """Yields the error that a part raises about its own settings."""
    try:
        call()
    except UserError as error:
        yield f"{where}{error}"
