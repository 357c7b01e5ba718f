"""Converts a run's directory, name and start, its monitor, back end and adapters."""

import re

from trinity.verl.rules.losses import GVPO, LOSS_MODE
from trinity.verl.settings import CONFIG_FILE, VerlSetting, is_verl_default
from trinity.verl.values import as_segment
from trinity.verl.work import Conversion

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
    "a program of its own, of which the keys alone are converted: write the loss, the advantage or "
    "the workflow that it adds as a part of your own, see docs/algorithms.md and docs/workflows.md"
)
_ALPHA, _MEGATRON_ALPHA = 16, 32
"""veRL's defaults of an adapter's scale."""
_ONE = "`monitor.monitor_type` has one monitor, of wandb, mlflow and tensorboard"


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


def convert_own_configuration(work: Conversion) -> None:
    """Reports the configuration file that Hydra reads beside the command line."""
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
            "it is not veRL's own, and what it sets is not read: give the file "
            "in front of the script, `trinity config from-verl FILE.yaml SCRIPT`"
        )
        work.report.missing.append((name, answer))


def convert_program(work: Conversion) -> None:
    """Reports a program that is not veRL's, with what it adds to its keys."""
    program = work.settings.program
    if program and _GVPO_PROGRAM.fullmatch(program) and work.settings.peek(LOSS_MODE) == GVPO:
        work.report.advice.append(
            f"{program} sums its loss over the rows of a micro-batch, here it is the mean over the "
            "tasks of a step: gradients are smaller, which AdamW evens out and `trainer.grad_clip` "
            "does not"
        )
    elif program and not _SAME_PROGRAM.fullmatch(program):
        setting = VerlSetting(key="program", value=program, where="what the script starts")
        work.report.missing.append((setting, _OWN_PROGRAM))


def _put_lora(work: Conversion) -> None:
    model = "actor_rollout_ref.model"
    ranks = (work.settings.peek(key) for key in LORA_RANKS)
    if not any(isinstance(rank, int) and rank > 0 for rank in ranks):
        for name in ("lora_alpha", "lora.alpha", "target_modules", "lora.target_modules"):
            work.report_not_needed(f"{model}.{name}", "without LoRA")
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
