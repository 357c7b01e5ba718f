"""Converts on-policy distillation: a teacher instead of rewards, or in addition to them."""

from trinity.algorithm.units import SAMPLE_UNIT, UNIT_ARGUMENT
from trinity.verl.rules.rewards import DATA_SOURCE, INPUT, tasksets_of
from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue
from trinity.verl.work import ACTOR, Conversion

TEACHERS = "explorer.auxiliary_models"
COUNTS_SAMPLES = "veRL's baselines count samples, not runs"
_TEACHERS = "distillation.teacher_models."
_LOSS = "distillation.distillation_loss"
_K1 = ("k1", "kl")
_CLAMP = 10.0
"""veRL's default of `loss_max_clamp`."""
_UNREAD = "it is of losses over the teacher's likeliest tokens"
_COMPARED = (
    "distillation here is by the policy gradient of `k1` (`loss_mode: k1`, "
    "`use_policy_gradient: True`; with task rewards, `use_task_rewards: True`, the advantage is "
    "`adv_estimator: grpo`'s), or of whole distributions (`loss_mode: forward_kl_topk`, "
    "`use_policy_gradient: False`)"
)
_WHOLE = "forward_kl_topk"
"""veRL's loss over the teacher's likeliest words."""
_LIKELIEST = 128
"""veRL's default of `topk`."""
_IN_LOSS = "the teacher's divergence is a term of the loss, without ratios or clipping"
_GRPO = ("grpo", "grpo_vectorized")
"""Estimators whose advantage the teacher's is added to."""


def is_distilled(work: Conversion) -> bool:
    """True if a teacher trains the policy."""
    return work.settings.peek("distillation.enabled") is True


def _is_of_whole_distributions(work: Conversion) -> bool:
    """True if the teacher's likeliest words are compared with the policy's, as a loss."""
    is_gradient = work.settings.peek(f"{_LOSS}.use_policy_gradient") in (None, True)
    return work.settings.peek(f"{_LOSS}.loss_mode") == _WHOLE and not is_gradient


def teacher_gpus(work: Conversion) -> tuple[int, int]:
    """Returns the teacher's GPUs and those of one of its engines; zeros without a teacher.

    A teacher in the trainer has no engine, so that training gets its GPUs.
    """
    if not is_distilled(work):
        return 0, 0
    nodes = max(work.integer("distillation.nnodes", 0), 1)
    gpus = nodes * work.integer("distillation.n_gpus_per_node", 8)
    if _is_of_whole_distributions(work):
        return gpus, 0
    per_engine = 2
    for setting in _teacher_settings(work):
        if setting.key.endswith(".tensor_model_parallel_size") and isinstance(setting.value, int):
            per_engine = max(setting.value, 1)
            break
    return gpus, per_engine


def convert_distillation(work: Conversion) -> None:
    """Converts section `distillation`, where it is enabled."""
    if not is_distilled(work):
        for setting in work.settings.all():
            if setting.key.startswith("distillation."):
                work.report_not_needed(setting.key, "without `distillation.enabled`")
        return
    enabled = work.settings.take("distillation.enabled")
    assert enabled is not None
    if _is_of_whole_distributions(work):
        _put_whole_distributions(work, enabled)
        return
    has_rewards = _has_task_rewards(work)
    advantage = "grpo_distill" if has_rewards else "on_policy_distill"
    note = "GRPO's and the teacher's" if has_rewards else "in the place of algorithm.adv_estimator"
    work.put("algorithm.algorithm_type", advantage, enabled)
    work.put("algorithm.advantage_fn", advantage, enabled, note)
    work.put(f"{INPUT}.default_workflow_type", "on_policy_distill_workflow", enabled)
    if has_rewards:
        work.put(
            f"algorithm.advantage_fn_args.{UNIT_ARGUMENT}", SAMPLE_UNIT, enabled, COUNTS_SAMPLES
        )
    if has_rewards and work.settings.peek("algorithm.norm_adv_by_std_in_grpo") is False:
        args = "algorithm.advantage_fn_args.norm_adv_by_std_in_grpo"
        work.put(args, False, enabled, "as GRPO's advantage is without it")
    _put_loss(work, has_rewards)
    _put_teacher(work)


def _put_whole_distributions(work: Conversion, enabled: VerlSetting) -> None:
    """Converts a teacher in the trainer, with distributions that the loss compares."""
    section = "algorithm.distillation"
    has_rewards = work.settings.value(f"{_LOSS}.use_task_rewards", True) is True
    mode = work.settings.take(f"{_LOSS}.loss_mode")
    assert mode is not None
    _put_teacher(work, in_trainer=True)
    work.put(f"{section}.divergence", "forward", mode)
    work.copy(f"{_LOSS}.topk", f"{section}.top_k", _LIKELIEST)
    work.report_not_needed(f"{_LOSS}.use_policy_gradient", _IN_LOSS)
    if has_rewards:
        work.copy(f"{_LOSS}.distillation_loss_coef", f"{section}.coef", 1.0)
    else:
        why = "veRL trains on the teacher alone without `use_task_rewards`"
        work.put("algorithm.algorithm_type", "vocabulary_distill", enabled)
        for part, name in (("advantage", "none"), ("kl_loss", "none"), ("entropy_loss", "none")):
            work.put(f"algorithm.{part}_fn", name, enabled, why)
            work.draft.remove(f"algorithm.{part}_fn_args")
        work.report_not_needed(f"{ACTOR}.entropy_coeff", why)
        work.put("algorithm.policy_loss_fn", "gpg", enabled, "its advantage is 0")
        work.draft.remove("algorithm.policy_loss_fn_args")
        why = "without `use_task_rewards` veRL's coefficient is 1"
        work.report_not_needed(f"{_LOSS}.distillation_loss_coef", why)
    for name in ("loss_max_clamp", "log_prob_min_clamp"):
        why = "words outside the top k count as one, so that no term is unbounded"
        work.report_left_out(f"{_LOSS}.{name}", why)
    for name in ("policy_loss_mode", "clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        work.report_not_needed(f"{_LOSS}.{name}", _IN_LOSS)
    for name in ("use_chunked_topk", "chunked_topk_chunk_size"):
        work.report_not_needed(f"{_LOSS}.{name}", "the comparison is always made in chunks")
    work.report.advice.append(
        f"{_LOSS}.loss_mode={_WHOLE} ({mode.where}): veRL's sum stops at the teacher's likeliest "
        "words, and is cut at `loss_max_clamp`; here all other words count as one more"
    )


def _has_task_rewards(work: Conversion) -> bool:
    """True if GRPO's advantage of the rewards is trained in addition to the teacher's."""
    uses = work.settings.peek(f"{_LOSS}.use_task_rewards")
    return uses in (None, True) and work.settings.peek("algorithm.adv_estimator") in _GRPO


def _put_loss(work: Conversion, has_rewards: bool) -> None:
    expected: tuple[tuple[str, tuple[JsonValue, ...], JsonValue], ...] = (
        ("loss_mode", _K1, "k3"),
        ("use_policy_gradient", (True,), True),
        ("use_task_rewards", (has_rewards,), True),
    )
    for name, known, default in expected:
        setting = work.settings.take(f"{_LOSS}.{name}")
        value = default if setting is None or setting.value is None else setting.value
        if value in known:
            why = "the advantage works like this"
            if setting is not None:
                work.report.not_needed.append((setting, why))
        elif setting is not None:
            work.report.missing.append((setting, _COMPARED))
        else:
            work.report.advice.append(f"veRL's default {_LOSS}.{name}={default}: {_COMPARED}")
    args = "algorithm.advantage_fn_args"
    if has_rewards:
        work.copy(f"{_LOSS}.distillation_loss_coef", f"{args}.kl_coef", 1.0)
    else:
        work.put(f"{args}.kl_coef", 1.0, "veRL's coefficient without task rewards")
        why = "without `use_task_rewards` veRL's coefficient is 1"
        work.report_not_needed(f"{_LOSS}.distillation_loss_coef", why)
    work.copy(f"{_LOSS}.loss_max_clamp", f"{args}.max_gap", _CLAMP)
    for name in ("topk", "log_prob_min_clamp"):
        work.report_not_needed(f"{_LOSS}.{name}", _UNREAD)
    why = "the loss and its clipping are those of the actor"
    for name in ("policy_loss_mode", "clip_ratio", "clip_ratio_low", "clip_ratio_high"):
        work.report_not_needed(f"{_LOSS}.{name}", why)


def _teacher_settings(work: Conversion) -> list[VerlSetting]:
    return [setting for setting in work.settings.all() if setting.key.startswith(_TEACHERS)]


def teacher_names(work: Conversion) -> list[str]:
    """Returns the names of teachers with a model; veRL drops its default where others are."""
    names = [
        setting.key.removeprefix(_TEACHERS).partition(".")[0]
        for setting in _teacher_settings(work)
        if setting.key.endswith(".model_path")
    ]
    return [name for name in names if name != "teacher_model"] or names


def _put_teacher(work: Conversion, *, in_trainer: bool = False) -> None:
    """Converts the teachers; each has the rows of its `key`, if there are several."""
    names = teacher_names(work)
    known = names[:1] if in_trainer else names
    for setting in _teacher_settings(work):
        name, _, key = setting.key.removeprefix(_TEACHERS).partition(".")
        work.settings.take(setting.key)
        if name not in names:
            work.report.not_needed.append((setting, "veRL drops it, as there are other teachers"))
        elif name not in known:
            work.report.missing.append((setting, "one teacher is in the trainer, for all rows"))
        elif not in_trainer:
            _put_teacher_key(work, setting, key, known.index(name), is_only=len(known) == 1)
        elif key == "model_path":
            work.put("algorithm.distillation.model_path", setting.value, setting)
        else:
            why = "the teacher is in the trainer and has no engine"
            work.report.not_needed.append((setting, why))
    key = "distillation.teacher_key"
    if len(known) < 2:
        work.report_not_needed(key, "there is one teacher for all rows")
        return
    given = work.settings.take(key)
    column = DATA_SOURCE if given is None else given.value
    source = given or f"veRL's default of {key}"
    for taskset in tasksets_of(work):
        work.put(f"{taskset}.workflow_args.teacher_key", column, source)


def _put_teacher_key(
    work: Conversion, setting: VerlSetting, key: str, place: int, *, is_only: bool
) -> None:
    ours = {
        **({} if is_only else {"key": "name"}),
        "model_path": "model_path",
        "inference.tensor_model_parallel_size": "tensor_parallel_size",
        "inference.gpu_memory_utilization": "gpu_memory_utilization",
        "inference.max_model_len": "max_model_len",
        "inference.enforce_eager": "enforce_eager",
    }.get(key)
    if ours is not None:
        work.put(f"{TEACHERS}[{place}].{ours}", setting.value, setting)
    elif key in ("key", "num_replicas", "inference.name"):
        why = "engines follow from GPUs, and vLLM is the teacher's engine, too"
        work.report.not_needed.append((setting, why))
    else:
        work.report.left_out.append((setting, "an option of the teacher's engine"))
