"""Converts a run's directory, name and start, its monitor, its back end (FSDP2) and adapters."""

import re
from collections.abc import Iterator

from trinity.config.loading.back_end_keys import SHARED_SEQUENCES, SIZES, TRANSFORMER, TURBO_SIZES
from trinity.verl.rules.losses import GVPO, LOSS_MODE
from trinity.verl.settings import CONFIG_FILE, VerlSetting, is_verl_default
from trinity.verl.shell.variables import is_of_a_library
from trinity.verl.table.back_ends import BACK_ENDS, TURBO
from trinity.verl.table.optimizers import KEPT_EXACT
from trinity.verl.values import JsonValue, as_segment
from trinity.verl.work import ACTOR, Conversion

FSDP = ("dp", "fsdp", "fsdp2")
ULYSSES = "trainer.ulysses_sequence_parallel_size"
_CHOOSING = (
    "model_engine",
    "actor@actor_rollout_ref.actor",
    f"{ACTOR}.strategy",
    f"{ACTOR}.model_engine",
    f"{ACTOR}.fsdp_config.strategy",
    "engine",
    "engine.strategy",
    "engine.distributed_strategy",
    "model.strategy",
)
_NAMES = {
    "megatron": "Megatron",
    "veomni": "VeOmni",
    "torchtitan": "TorchTitan",
    "automodel": "AutoModel",
    "mlite": "Megatron Lite",
}
_OTHER = re.compile("|".join(_NAMES))
_SECTION = re.compile(
    rf"(?:{re.escape(ACTOR)}\.(?:{'|'.join((*BACK_ENDS, rf'{TURBO}.distributed'))})|engine)"
    r"\.(?P<name>[a-z_]+)"
)
_PADDED = re.compile(
    rf"(?:{re.escape(ACTOR)}\.(?:(?:{'|'.join(BACK_ENDS)})\.)?|actor_rollout_ref\.model\."
    r"|engine\.|model\.|)use_remove_padding"
)
_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "float32": "float32",
    "fp16": "float16",
    "half": "float16",
    "float16": "float16",
}
_PASS_DTYPES = (
    *(f"{ACTOR}.{name}.dtype" for name in ("fsdp_config", *BACK_ENDS)),
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype",
    "engine.dtype",
    "engine.mixed_precision.param_dtype",
)
_EXACT_DTYPES = {
    f"{ACTOR}.fsdp_config.model_dtype": "keeps its weights",
    f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "sums up gradients",
    "engine.model_dtype": "keeps its weights",
    "engine.mixed_precision.reduce_dtype": "sums up gradients",
    **{
        f"{section}.{name}": doing
        for optimizer in (f"{ACTOR}.optim", "critic.optim", "optim")
        for section in (optimizer, f"{optimizer}.override_optimizer_config")
        for name, doing in KEPT_EXACT.items()
    },
}
"""Keys of dtypes that are always float32 here, each with its use in the trainer."""
_SHARDED = "FSDP2 shards over all ranks instead"
MONITORS = ("wandb", "mlflow", "tensorboard")
LORA_RANKS = (
    "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.model.lora.rank",
    "model.lora_rank",
)
_SAME_PROGRAM = re.compile(
    r"verl\..*|(?:.*\.)?main_ppo_split"
    r"|recipe\.(?:dapo(?:\.dapo_transfer_queue)?\.main_dapo|entropy\.main_entropy"
    r"|partial_rollout\.main_ppo|one_step_off_policy\..*|fully_async_policy\..*)"
)
"""veRL's own programs, and those of recipes that do what their keys say."""
_GVPO_PROGRAM = re.compile(r"(?:.*\.)?gvpo_main_ppo")
"""The recipe of GVPO, which is an advantage here."""
_OWN_PROGRAM = (
    "a custom program, of which only the keys are converted: port the loss, the advantage or the "
    "workflow that it adds to a plugin, see docs/algorithms.md and docs/workflows.md"
)
_ALPHA, _MEGATRON_ALPHA = 16, 32
"""veRL's defaults of an adapter's scale."""
_ENV_VARS = re.compile(r"ray_(?:kwargs\.ray_init|init)\.runtime_env\.env_vars\.\w+")
_ONE = "`monitor.monitor_type` has one monitor, of wandb, mlflow and tensorboard"


def convert_back_end(work: Conversion) -> None:
    """Converts the choice of the back end, its parallel sizes and its number types."""
    names = [name for key in _CHOOSING if (name := _put_choice(work, key))]
    configured = _OTHER.search(str(work.settings.peek("hydra.config_name") or ""))
    if configured:
        work.draft.put("trainer.trainer_strategy", "fsdp2")
        names.append(configured[0])
    sizes = [text for setting in _settings_of_sections(work) for text in _take_size(work, setting)]
    if names or sizes:
        _warn(work, names, sizes)
    _leave_out_padding(work)
    _leave_out_drafts(work)
    _put_types(work)
    _put_recompute(work)
    for section in (*(f"{ACTOR}.{name}" for name in BACK_ENDS), "engine"):
        _put_balance(work, f"{section}.{TRANSFORMER}")


def sequence_parallel_size(work: Conversion) -> int:
    """Returns the number of GPUs that share a sequence, converted already or not."""
    sections = (f"{ACTOR}.", f"{ACTOR}.fsdp_config.", "", "engine.")  # the last two: supervised
    own = (f"{section}ulysses_sequence_parallel_size" for section in sections)
    sizes = (work.draft.get(ULYSSES), *(work.settings.peek(name) for name in own))
    return next((size for size in sizes if isinstance(size, int) and size > 1), 1)


def _put_choice(work: Conversion, key: str) -> str:
    """Takes a key that chooses the back end; returns the name of one other than FSDP."""
    setting = work.settings.take(key)
    if setting is None:
        return ""
    value = str(setting.value)
    if value in FSDP or value.startswith("fsdp"):
        if key.endswith("strategy") and key.startswith(ACTOR):
            work.put("trainer.trainer_strategy", "fsdp2", setting)
        else:
            work.report.not_needed.append((setting, "FSDP2 is the default"))
        return ""
    work.put("trainer.trainer_strategy", "fsdp2", setting, f"in the place of {value}")
    return value


def _settings_of_sections(work: Conversion) -> Iterator[tuple[VerlSetting, str]]:
    """Settings of another back end's section, each with the last part of its key."""
    for setting in work.settings.all():
        if found := _SECTION.fullmatch(setting.key):
            yield setting, found["name"]


def _take_size(work: Conversion, found: tuple[VerlSetting, str]) -> Iterator[str]:
    """Takes a parallel size; yields it as text for the warning if it is above 1."""
    setting, name = found
    if name not in {*SIZES, *TURBO_SIZES, *SHARED_SEQUENCES}:
        return
    work.settings.take(setting.key)
    is_above_one = isinstance(setting.value, int) and setting.value > 1
    if name in SHARED_SEQUENCES and is_above_one:
        work.put(ULYSSES, setting.value, setting, "GPUs that share a sequence")
        return
    work.report.left_out.append((setting, _SHARDED))
    if is_above_one:
        yield f"{name}={setting.value}"


def _leave_out_padding(work: Conversion) -> None:
    """Leaves out keys that keep padding if ranks share sequences, which are never padded."""
    if sequence_parallel_size(work) == 1:
        return
    for setting in work.settings.all():
        if setting.value is False and _PADDED.fullmatch(setting.key):
            work.report_left_out(setting.key, "ranks share rows that have no padding")


def _put_recompute(work: Conversion) -> None:
    """Converts FSDP-Turbo's choice, which comes before the model's."""
    setting = work.settings.take(f"{ACTOR}.{TURBO}.memory.recompute")
    if setting is not None and setting.value is not True:
        work.report.not_needed.append((setting, "activations are kept unless the model's key says"))
    elif setting is not None:
        why = "FSDP-Turbo's `memory.recompute` comes first"
        work.report_not_needed("actor_rollout_ref.model.enable_gradient_checkpointing", why)
        work.put("trainer.enable_gradient_checkpointing", True, setting)


def _leave_out_drafts(work: Conversion) -> None:
    """Leaves out layers that predict further tokens where veRL does not train them.

    They make rollout faster without changing the distribution of its samples.
    """
    section = "model.mtp" if work.settings.is_supervised else "actor_rollout_ref.model.mtp"
    if work.settings.peek(f"{section}.enable_train") not in (None, False):
        return
    for setting in work.settings.all():
        if setting.key.startswith(f"{section}."):
            work.report_left_out(setting.key, "without `enable_train` these layers are not trained")


def _warn(work: Conversion, names: list[str], sizes: list[str]) -> None:
    found = next((match[0] for name in names if (match := _OTHER.search(name))), "")
    name = _NAMES.get(found, names[0] if names else "another back end")
    left = f", without {', '.join(sizes)}" if sizes else ""
    work.report.advice.append(
        f"veRL trains this with {name}, here FSDP2 does: it shards weights, gradients and "
        f"optimizer over all ranks and gathers one layer at a time{left}. Steps mean the same, "
        "memory and time differ: `trinity config plan` shows the memory per GPU, which "
        f"`trainer.param_offload`, `trainer.optimizer_offload` and `{ULYSSES}` reduce"
    )


def _put_types(work: Conversion) -> None:
    """Converts the type of the passes; weights and sums of gradients are in float32."""
    for key in _PASS_DTYPES:
        setting = work.settings.take(key)
        if setting is None or setting.value is None:
            continue
        dtype = _DTYPES.get(_plain(setting.value))
        if dtype is None:
            answer = "the passes compute in bfloat16, float16 or float32: `trainer.dtype`"
            work.report.missing.append((setting, answer))
        else:
            work.put("trainer.dtype", dtype, setting)
    for key, doing in _EXACT_DTYPES.items():
        setting = work.settings.take(key)
        if setting is None or setting.value is None:
            continue
        if _DTYPES.get(_plain(setting.value)) == "float32":
            work.report.not_needed.append((setting, "this is always the case here"))
        else:
            work.report.advice.append(
                f"{key}={setting.value} ({setting.where}): the trainer {doing} in float32, which "
                "is more exact and takes more memory; passes compute in `trainer.dtype`"
            )


def _put_balance(work: Conversion, section: str) -> None:
    """Converts Megatron's losses of the gates of a mixture of experts, and of a sparse index."""
    kind = work.settings.take(f"{section}.moe_router_load_balancing_type")
    is_on = kind is not None and str(kind.value) not in ("none", "None")
    if kind is not None:
        why = "rows are balanced one by one" if is_on else "there is no such loss by default"
        work.report.not_needed.append((kind, why))
    balance = work.settings.take(f"{section}.moe_aux_loss_coeff")
    if balance is not None and balance.value:
        _put_aux_loss(work, balance, is_on=is_on)
    squares = work.settings.take(f"{section}.moe_z_loss_coeff")
    if squares is not None and squares.value:
        work.put("algorithm.router_z_loss_coef", squares.value, squares)
    if work.settings.peek(f"{section}.dsa_indexer_loss_coeff") == 0:
        for name in ("dsa_indexer_loss_coeff", "dsa_indexer_use_sparse_loss"):
            work.report_not_needed(f"{section}.{name}", "with a factor of 0 it is no loss")


def _put_aux_loss(work: Conversion, setting: VerlSetting, *, is_on: bool) -> None:
    """Converts the factor of the balance; veRL ignores it unless its type is given."""
    if is_on:
        work.put("algorithm.router_aux_loss_coef", setting.value, setting)
        work.report.advice.append(
            f"{setting.key}={setting.value} ({setting.where}): Megatron balances the experts of a "
            "micro-batch, here those of each row are, independently of the micro-batches"
        )
        return
    why = (
        "veRL ignores it with `moe_router_load_balancing_type: none`, the default: to balance "
        f"experts, give `algorithm.router_aux_loss_coef: {setting.value}`"
    )
    work.report.not_needed.append((setting, why))


def _plain(value: JsonValue) -> str:
    return str(value).removeprefix("torch.").lower()


def convert_running(work: Conversion) -> None:
    """Converts names, the root directory, the start, the monitor and adapters."""
    project = work.settings.value("trainer.project_name", "verl_examples")
    name = work.settings.value("trainer.experiment_name", "gsm8k")
    work.put("project", as_segment(project), work.origin("trainer.project_name", project))
    work.put("name", as_segment(name), work.origin("trainer.experiment_name", name))
    _put_root(work, str(project), str(name))
    _put_start(work)
    _put_monitor(work)
    _put_lora(work)
    _advise_on_environment(work)


def _advise_on_environment(work: Conversion) -> None:
    """Advises on environment variables that Ray would set in its processes."""
    settings = [each for each in work.settings.all() if _ENV_VARS.fullmatch(each.key)]
    found = {each.key.rpartition(".")[2]: each for each in settings}
    names = sorted(name for name in found if not is_of_a_library(name))
    for name in names:
        work.settings.take(found[name].key)
    if names:
        shown = ", ".join(f"{name}={found[name].value}" for name in names)
        work.report.advice.append(
            f"{found[names[0]].key} ({found[names[0]].where}): give {shown} to `trinity run` in "
            "its environment"
        )


def _put_root(work: Conversion, project: str, name: str) -> None:
    """Converts the root directory, without the parts that this system adds to it."""
    key = "trainer.default_local_dir"
    setting = work.settings.take(key)
    if setting is None or not setting.value:
        work.put("checkpoint_root_dir", "./checkpoints", f"veRL's default of {key}")
        return
    path = str(setting.value).rstrip("/")
    root = path.removesuffix(f"/{project}/{name}")
    note = "without the project and the name, which are added" if root != path else ""
    work.put("checkpoint_root_dir", root, setting, note)


def _put_start(work: Conversion) -> None:
    """Converts the start checkpoint; veRL reads its path only in one mode."""
    path = work.settings.take("trainer.resume_from_path")
    if path is None or not path.value:
        return
    if work.settings.peek("trainer.resume_mode") != "resume_path":
        work.report.not_needed.append((path, "veRL reads it only with `resume_mode=resume_path`"))
        return
    work.put("trainer.resume_mode", "resume_path", path)
    work.put("trainer.resume_from_path", path.value, path)


def _put_monitor(work: Conversion) -> None:
    key = "trainer.logger"
    setting = work.settings.take(key)
    loggers = ["console", "wandb"] if setting is None else setting.value
    names = [str(name) for name in (loggers if isinstance(loggers, list) else [loggers])]
    wanted = [name for name in names if name in MONITORS]
    origin = work.origin(key, ",".join(names))
    work.put("monitor.monitor_type", wanted[0] if wanted else "none", origin, "console is always")
    others = [name for name in names if name not in ("console", *wanted[:1])]
    if others and setting is not None:
        work.report.left_out.append((setting, f"{_ONE} ({', '.join(others)} left out)"))


def convert_evaluation_alone(work: Conversion) -> None:
    """Converts a run that only evaluates a model."""
    setting = work.settings.take("trainer.val_only")
    if setting is None:
        return
    if setting.value is not True:
        work.report.not_needed.append((setting, "this is always the case here"))
        return
    work.put("mode", "bench", setting, "evaluates the model, or a run's checkpoints")
    if work.settings.peek("trainer.total_training_steps") == 0:
        for ours in ("buffer.total_steps", "trainer.total_steps"):
            work.draft.remove(ours)


def convert_own_configuration(work: Conversion) -> None:
    """Reports the configuration file that Hydra reads in addition to the command line."""
    name, file = work.settings.take("hydra.config_name"), work.settings.take(CONFIG_FILE)
    if file is not None:
        work.report.not_needed.append((file, "its keys are read, and the script's override them"))
    if name is None:
        return
    if is_verl_default(str(name.value)):
        work.report.not_needed.append((name, "it holds veRL's own defaults"))
    elif file is not None:
        work.report.not_needed.append((name, "that is the file"))
    else:
        answer = (
            "it is not one of veRL's configurations and was not read: give the file "
            "before the script, `trinity config from-verl FILE.yaml SCRIPT`"
        )
        work.report.missing.append((name, answer))


def convert_program(work: Conversion) -> None:
    """Reports a program that is not part of veRL, which may do more than its keys say."""
    program = work.settings.program
    if program and _GVPO_PROGRAM.fullmatch(program) and work.settings.peek(LOSS_MODE) == GVPO:
        work.report.advice.append(
            f"{program} sums its loss over the rows of a micro-batch, here it is the mean over the "
            "tasks of a step: gradients are smaller, which AdamW evens out and `trainer.grad_clip` "
            "does not"
        )
    elif program and not _SAME_PROGRAM.fullmatch(program):
        setting = VerlSetting(key="program", value=program, where="started by the script")
        work.report.missing.append((setting, _OWN_PROGRAM))


def _put_lora(work: Conversion) -> None:
    model = "actor_rollout_ref.model"
    ranks = (work.settings.peek(key) for key in LORA_RANKS)
    if not any(isinstance(rank, int) and rank > 0 for rank in ranks):
        for name in ("lora_alpha", "alpha", "target_modules", "exclude_modules"):
            for key in (f"{model}.{name}", f"{model}.lora.{name}"):
                work.report_not_needed(key, "without LoRA")
        work.report_not_needed("model.lora_alpha", "without LoRA")
        work.report_not_needed("model.target_modules", "without LoRA")
    for key in LORA_RANKS:
        setting = work.settings.take(key)
        if setting is None:
            continue
        if isinstance(setting.value, int) and setting.value > 0:
            work.put("model.lora_configs[0].lora_rank", setting.value, setting)
            _put_scale(work, key)
        else:
            work.report.not_needed.append((setting, "without LoRA"))


def _put_scale(work: Conversion, rank: str) -> None:
    """Writes veRL's default of an adapter's scale, which is not ours."""
    key = rank.replace("lora_rank", "lora_alpha").replace("lora.rank", "lora.alpha")
    if work.settings.peek(key) is None:
        default = _MEGATRON_ALPHA if ".lora." in key else _ALPHA
        work.put("model.lora_configs[0].lora_alpha", default, f"veRL's default of {key}")
