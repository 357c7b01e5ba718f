"""Converts veRL's settings to a configuration of this system and a report."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trinity.errors import UserError
from trinity.verl.defaults import apply_defaults
from trinity.verl.easy_r1 import is_easy_r1, translate
from trinity.verl.fork_code import SWITCHES, is_switch, lines_read, where_read
from trinity.verl.fork_functions import functions_that_act, subtracts_kl
from trinity.verl.key_table import find_row, near_key
from trinity.verl.row import TRAINER_CONFIG, KeyConversion, KeyRow
from trinity.verl.rules.agents import convert_agents
from trinity.verl.rules.algorithm import convert_algorithm, convert_old_logprobs
from trinity.verl.rules.batches import (
    OLD_SFT,
    convert_batches,
    convert_schedules,
    convert_supervised_schedule,
)
from trinity.verl.rules.data import (
    convert_data,
    convert_fork_names,
    convert_lengths,
    file_names,
)
from trinity.verl.rules.distillation import convert_distillation
from trinity.verl.rules.easy_r1 import convert_easy_r1
from trinity.verl.rules.losses import AGG_MODE, LOSS_MODE
from trinity.verl.rules.placement import convert_placement
from trinity.verl.rules.ranks import VerlMachines, limit_supervised_ranks
from trinity.verl.rules.rewards import convert_rewards
from trinity.verl.rules.running import (
    convert_back_end,
    convert_evaluation_alone,
    convert_own_configuration,
    convert_program,
    convert_running,
)
from trinity.verl.settings import VerlSetting, VerlSettings
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import JsonValue, as_count, as_list
from trinity.verl.work import ACTOR, Conversion, ConversionOptions

BUFFER = "buffer.trainer_input.experience_buffer"
_ON_GPUS = 8
_BATCH = 256
"""veRL's default of rows in a step."""
_BETAS: JsonValue = [0.9, 0.999]
_Default = tuple[str, str, JsonValue]
"""veRL's key, ours, and veRL's default."""
_MODEL = "actor_rollout_ref.model"
_ACTOR_DEFAULTS: tuple[_Default, ...] = (
    (f"{ACTOR}.optim.lr", "algorithm.optimizer.lr", 1e-6),
    (f"{ACTOR}.optim.betas", "algorithm.optimizer.betas", _BETAS),
    (f"{ACTOR}.optim.weight_decay", "algorithm.optimizer.weight_decay", 0.01),
    (f"{ACTOR}.optim.clip_grad", "trainer.grad_clip", 1.0),
    (f"{_MODEL}.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing", True),
    (f"{_MODEL}.use_remove_padding", "trainer.use_remove_padding", True),
)
_CRITIC = "trainer.critic"
_CRITIC_DEFAULTS: tuple[_Default, ...] = (
    ("critic.optim.lr", f"{_CRITIC}.optimizer.lr", 1e-5),
    ("critic.optim.betas", f"{_CRITIC}.optimizer.betas", _BETAS),
    ("critic.optim.weight_decay", f"{_CRITIC}.optimizer.weight_decay", 0.01),
    ("critic.optim.clip_grad", f"{_CRITIC}.grad_clip", 1.0),
    ("critic.cliprange_value", f"{_CRITIC}.cliprange_value", 0.5),
    (
        "critic.model.enable_gradient_checkpointing",
        f"{_CRITIC}.enable_gradient_checkpointing",
        True,
    ),
)
_SFT_DEFAULTS: tuple[_Default, ...] = (
    ("optim.betas", "algorithm.optimizer.betas", _BETAS),
    ("optim.weight_decay", "algorithm.optimizer.weight_decay", 0.01),
    ("optim.clip_grad", "trainer.grad_clip", 1.0),
    ("model.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing", True),
    ("model.use_remove_padding", "trainer.use_remove_padding", True),
)
Rules = tuple[Callable[[Conversion], None], ...]
RULES: Rules = (
    convert_fork_names,
    convert_program,
    convert_running,
    convert_back_end,
    convert_own_configuration,
    convert_algorithm,
    convert_placement,
    convert_batches,
    convert_schedules,
    convert_data,
    convert_easy_r1,
    convert_rewards,
    convert_agents,
    convert_lengths,
    convert_distillation,
    convert_evaluation_alone,
)
NOT_TRAINING = ("main_generation", "main_eval", "model_merger")
UNKNOWN_KEY = "this veRL key is not known here: check whether the run needs it"


def convert_supervised(work: Conversion) -> None:
    """Converts related keys of fine-tuning, and those for which veRL has a default."""
    work.put("mode", "train", f"{work.settings.module or 'model.*'} trains on files")
    work.put("algorithm.algorithm_type", "sft", work.settings.module or "supervised fine-tuning")
    _put_rows(work)
    _put_machines(work)
    _put_total_steps(work)
    _put_save_interval(work)
    _put_model(work)


def _put_rows(work: Conversion) -> None:
    setting = work.settings.take("data.train_files")
    value: JsonValue = "~/data/gsm8k/train.parquet" if setting is None else setting.value
    paths = file_names(value if isinstance(value, list) else [value])
    work.put(f"{BUFFER}.storage_type", "file", "rows of files")
    path = paths[0] if paths else ""
    work.put(f"{BUFFER}.path", path, setting or "veRL's default of data.train_files")
    if len(paths) > 1 and setting is not None:
        work.report.missing.append((setting, "the first is taken: put the files in one directory"))
    _put_format(work)
    work.copy("data.train_batch_size", "buffer.train_batch_size", _BATCH, "rows of one train step")


def _put_format(work: Conversion) -> None:
    messages = work.settings.take("data.messages_key") or work.settings.take(
        "data.multiturn.messages_key"
    )
    prompt = work.settings.take("data.prompt_key")
    response = work.settings.take("data.response_key")
    turns = work.settings.value("data.multiturn.enable", False)
    if work.settings.module.endswith(OLD_SFT) and messages is None and turns is not True:
        prompt = prompt or _column("prompt", "question")
        response = response or _column("response", "answer")
    if prompt is not None and response is not None and messages is None:
        work.put(f"{BUFFER}.format.prompt_type", "plaintext", prompt)
        _put_text_column(work, "prompt", prompt)
        _put_text_column(work, "response", response)
        return
    work.put(f"{BUFFER}.format.prompt_type", "messages", "veRL's rows are messages")
    work.put(
        f"{BUFFER}.format.enable_concatenated_multi_turn",
        True,
        "veRL trains all turns of the assistant",
    )
    source = messages or "veRL's default of data.messages_key"
    work.put(f"{BUFFER}.format.messages_key", messages.value if messages else "messages", source)
    why = "`data.messages_key` holds prompt and answer"
    work.report_not_needed("data.prompt_key", why)
    work.report_not_needed("data.response_key", why)


def _column(name: str, column: str) -> VerlSetting:
    """The default of the older trainer, which reads two columns of text."""
    return VerlSetting(key=f"data.{name}_key", value=column, where="veRL's default of")


def _put_text_column(work: Conversion, name: str, setting: VerlSetting) -> None:
    """Converts a column of text, or one within a column as `extra_info.question`."""
    inner = work.settings.take(f"data.{name}_dict_keys")
    keys = as_list(inner.value) if inner is not None else []
    below = keys if isinstance(keys, list) else [keys]
    path = [str(setting.value), *(str(key) for key in below)]
    work.put(f"{BUFFER}.format.{name}_key", ".".join(path[:2]), setting)
    if inner is not None and len(path) > 2:
        work.report.missing.append((inner, "one column is read, the first"))


def _put_save_interval(work: Conversion) -> None:
    setting = work.settings.take("trainer.save_freq")
    if setting is None or not isinstance(setting.value, int) or setting.value <= 0:
        work.put("trainer.save_interval", 0, work.origin("trainer.save_freq", -1), "at the end")
    else:
        work.put("trainer.save_interval", setting.value, setting)


def _put_machines(work: Conversion) -> None:
    """Converts the machines, from torchrun's options or the trainer's section."""
    counts = []
    for ours, keys, default in (
        ("cluster.node_num", ("torchrun.nnodes", "trainer.nnodes"), 1),
        ("cluster.gpu_per_node", ("torchrun.nproc_per_node", "trainer.n_gpus_per_node"), _ON_GPUS),
    ):
        present = [key for key in keys if work.settings.has(key)]
        count, key = default, keys[0]
        if present:
            key = present[0]
            count = work.number(key, default, ours)
        work.put(ours, count, work.origin(key, count))
        counts.append(count)
        for other in present[1:]:
            work.report_not_needed(other, f"`{key}` decides")
    machines = VerlMachines(*counts)
    rows = as_count(work.settings.peek("data.train_batch_size"), _BATCH)
    ranks = limit_supervised_ranks(work, machines, rows)
    if 0 < machines.filled_by(ranks) < machines.nodes:
        work.report.advice.append(
            f"{machines.total - ranks} of {machines.total} GPUs are idle, as a step has {rows} "
            f"rows: set `cluster.node_num: {machines.filled_by(ranks)}`"
        )


def _put_total_steps(work: Conversion) -> None:
    key = "trainer.total_training_steps"
    steps = work.settings.take(key)
    if steps is None or steps.value is None or steps.value == -1:
        work.copy("trainer.total_epochs", "buffer.total_epochs", 4)
    else:
        work.put("trainer.total_steps", steps.value, steps)
        work.report_not_needed("trainer.total_epochs", f"`{key}` decides")


def _put_model(work: Conversion) -> None:
    old = work.settings.take("model.partial_pretrain")
    if old is not None:
        work.put("model.model_path", old.value, old)
    else:
        work.copy("model.path", "model.model_path", "~/models/gemma-1.1-7b-it")
    work.copy("data.max_length", "model.max_model_len", 1024)


def convert_defaults(work: Conversion) -> None:
    """Writes the defaults of keys that are not set, after all keys that are set."""
    if work.settings.is_supervised:
        _put_all(work, _SFT_DEFAULTS)
        return
    convert_old_logprobs(work)
    _put_all(work, _ACTOR_DEFAULTS)
    if work.draft.get("trainer.ppo_micro_batch_size_per_gpu") is not None:
        _put_all(work, ((f"{ACTOR}.use_dynamic_bsz", "trainer.use_dynamic_bsz", False),))
    if work.has_critic:
        _put_all(work, _CRITIC_DEFAULTS)
        mode = f"{ACTOR}.loss_agg_mode"
        given = work.settings.peek(mode) or AGG_MODE
        _put_all(work, (("critic.loss_agg_mode", f"{_CRITIC}.loss_agg_mode", given),))


def _put_all(work: Conversion, defaults: tuple[_Default, ...]) -> None:
    for verl, ours, value in defaults:
        if work.draft.get(ours) is None and work.settings.peek(verl) != UNKNOWN:
            work.put(ours, value, f"veRL's default of {verl}")


SUPERVISED_RULES: Rules = (
    convert_program,
    convert_running,
    convert_back_end,
    convert_supervised,
    convert_supervised_schedule,
    convert_own_configuration,
)


@dataclass(frozen=True, slots=True)
class Converted:
    """A configuration, and a report of the settings that are not in it."""

    body: str
    report: tuple[str, ...]
    values: dict[str, JsonValue]
    parts: dict[str, str] = field(default_factory=dict)
    """Files of a plug-in folder that the configuration names, by name."""

    @property
    def yaml(self) -> str:
        """The file: the configuration, and the report as comments at its end."""
        comments = "".join(f"# {line}\n" for line in self.report)
        return f"{self.body}\n{comments}" if comments else self.body


def convert(settings: VerlSettings, choices: ConversionOptions | None = None) -> Converted:
    """Converts all settings; each one ends in the YAML or in the report.

    Raises: UserError if a value that the arithmetic needs is not a number.
    """
    if any(name in settings.module for name in NOT_TRAINING):
        raise UserError(f"{settings.module} trains nothing: give the script or file that trains")
    work = Conversion(settings=settings, choices=choices or ConversionOptions())
    if is_easy_r1(settings):
        translate(settings, work.choices.checkout)
    work.checkout = apply_defaults(settings, work.choices.verl_version, work.choices.checkout)
    work.folder_of_copy = settings.folder if work.checkout is None else work.checkout.folder
    work.report.advice += settings.advice
    for rule in SUPERVISED_RULES if settings.is_supervised else RULES:
        rule(work)
    for setting in list(settings.unhandled()):
        settings.take(setting.key)
        _convert_setting(work, setting)
    convert_defaults(work)
    _report_functions(work)
    _advise_on_unknown(work)
    body = work.draft.yaml()
    report = work.report.lines(settings.remarks)
    report += _read_together(settings, "\n".join([body, *report]))
    return Converted(body, tuple(report), work.draft.values(), work.parts)


def _report_functions(work: Conversion) -> None:
    """Names the functions of the script's veRL that run with its settings and are not veRL's."""
    if work.checkout is None or work.settings.is_supervised:
        return
    estimator = str(work.settings.peek("algorithm.adv_estimator") or "gae")
    loss = str(work.settings.peek(LOSS_MODE) or "vanilla")
    if work.settings.peek(f"{ACTOR}.use_kl_loss") is True and subtracts_kl(work.checkout.folder):
        work.report.changed.append(
            "`update_policy` (verl/workers/actor/dp_actor.py) subtracts the KL loss, which leads "
            "away from the reference; here it is added: give a negative `kl_coef` to repeat that"
        )
    own = functions_that_act(work.checkout.folder, estimator, loss, work.value_of_copy)
    work.report.changed += [each.text for each in own if each.name not in work.taken_functions]


def _advise_on_unknown(work: Conversion) -> None:
    """Advises the user to write values that are empty or known only by running the script."""
    leaves = list(work.draft.leaves())
    empty = [f"`{key}`" for key, value in leaves if value == ""]
    if empty:
        work.report.advice.append(f"{', '.join(empty)}: empty in the sources, write a value")
    keys = [f"`{key}`" for key, value in leaves if UNKNOWN in str(value)]
    if keys:
        work.report.advice.append(
            f"{', '.join(keys)}: write a value for {UNKNOWN}, which only running the script would "
            "show; --env NAME=VALUE gives it to the script's variables"
        )


def _read_together(settings: VerlSettings, text: str) -> list[str]:
    """Lists the settings that the rules read without a separate line."""
    lines = [
        f"  - {setting.key}={setting.value} ({setting.where})"
        for setting in settings.all()
        if not re.search(rf"(?<![\w.]){re.escape(setting.key)}(?![\w.])", text)
    ]
    return ["Read together with others:", *lines] if lines else []


def _convert_setting(work: Conversion, setting: VerlSetting) -> None:
    """Writes or reports a setting that no rule has taken."""
    row = find_row(setting.key, supervised=work.settings.is_supervised)
    if setting.value == UNKNOWN:
        work.report.missing.append((setting, f"give {setting.key}=<value> behind the script"))
    elif row is None and setting.value is None:
        work.report.not_needed.append((setting, "null leaves it to the default"))
    elif row is None:
        _report_unknown(work, setting)
    elif setting.value is None:
        work.report.not_needed.append((setting, "null leaves it to the default"))
    elif setting.value == {}:
        work.report.not_needed.append((setting, "it is empty"))
    elif setting.value in row.neutral:
        work.report.not_needed.append((setting, "this is always the case here"))
    elif setting.key.startswith("critic.") and not work.has_critic:
        work.report.not_needed.append((setting, "the algorithm has no critic"))
    else:
        _convert_by_row(work, setting, row)


def _report_unknown(work: Conversion, setting: VerlSetting) -> None:
    """Reports a key that veRL does not have: where the code of the script's own veRL reads it."""
    folder = work.folder_of_copy
    if folder is None or setting.key.startswith("hydra."):
        near = near_key(setting.key, supervised=work.settings.is_supervised)
        hint = f"; did you mean `{near}`?" if near else ""
        work.report.missing.append((setting, UNKNOWN_KEY + hint))
    elif not (where := where_read(folder, setting.key)):
        work.report.not_needed.append((setting, f"no code in {folder} reads it"))
    elif _is_taken(work, folder, setting.key):
        work.report.not_needed.append((setting, f"the part that is taken reads it ({where})"))
    elif switch := _switched_off(work, folder, setting.key):
        work.report.not_needed.append((setting, f"`{switch}` is false"))
    else:
        answer = f"{where} reads it: write that as a part of your own"
        work.report.missing.append((setting, answer))


def _is_taken(work: Conversion, folder: Path, key: str) -> bool:
    """True if parts that are taken are the only code that reads a key."""
    word = key.rpartition(".")[2]
    words = (work.taken.get(name, frozenset()) for name in lines_read(folder, key))
    return all(found is None or word in found for found in words)


def _switched_off(work: Conversion, folder: Path, key: str) -> str:
    """The switch of a key's section that is off; empty if there is none or it is on."""
    section = key.rpartition(".")[0]
    switches = (f"{section}.{name}" for name in SWITCHES if section)
    off = (name for name in switches if work.settings.peek(name) is False)
    return next((name for name in off if is_switch(folder, name)), "")


def _convert_by_row(work: Conversion, setting: VerlSetting, row: KeyRow) -> None:
    match row.conversion:
        case KeyConversion.MOVED:
            value = row.convert(setting.value) if row.convert else setting.value
            _move(work, setting, _ours(row, setting.key), value)
        case KeyConversion.PASSED:
            work.put(f"{TRAINER_CONFIG}.{setting.key}", setting.value, setting, row.note)
        case KeyConversion.NOT_NEEDED:
            work.report.not_needed.append((setting, row.note))
        case KeyConversion.LEFT_OUT:
            work.report.left_out.append((setting, row.note))
        case KeyConversion.MISSING | KeyConversion.COMBINED:
            work.report.missing.append((setting, row.note))


def _move(work: Conversion, setting: VerlSetting, ours: str, value: JsonValue) -> None:
    """Writes a line, unless another veRL key has written it."""
    there = work.draft.get(ours)
    if there is None:
        work.put(ours, value, setting)
    elif there == value:
        work.report.not_needed.append((setting, f"`{ours}` is written already"))
    else:
        answer = f"`{ours}: {there}` is written already, from another key: choose between the two"
        work.report.missing.append((setting, answer))


def _ours(row: KeyRow, key: str) -> str:
    """Our key for a veRL key; if the pattern ends with a star, so does our key."""
    if not row.verl.endswith("*"):
        return row.ours
    return row.ours.removesuffix("*") + key.removeprefix(row.verl.removesuffix("*"))
