"""Converts veRL's settings to a configuration of this system and a report."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from trinity.errors import UserError
from trinity.verl.key_table import find_row, near_key
from trinity.verl.row import TRAINER_CONFIG, KeyConversion, KeyRow
from trinity.verl.rules.agents import convert_agents
from trinity.verl.rules.algorithm import convert_algorithm
from trinity.verl.rules.back_end import convert_back_end
from trinity.verl.rules.batches import (
    convert_batches,
    convert_schedules,
    convert_supervised_schedule,
)
from trinity.verl.rules.data import convert_data, convert_lengths
from trinity.verl.rules.defaults import convert_defaults
from trinity.verl.rules.distillation import convert_distillation
from trinity.verl.rules.placement import convert_placement
from trinity.verl.rules.rewards import convert_rewards
from trinity.verl.rules.running import (
    convert_own_configuration,
    convert_program,
    convert_running,
)
from trinity.verl.rules.supervised import convert_supervised
from trinity.verl.settings import VerlSetting, VerlSettings
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import JsonValue
from trinity.verl.work import Conversion, ConversionOptions

Rules = tuple[Callable[[Conversion], None], ...]
RULES: Rules = (
    convert_program,
    convert_running,
    convert_back_end,
    convert_own_configuration,
    convert_algorithm,
    convert_placement,
    convert_batches,
    convert_schedules,
    convert_data,
    convert_rewards,
    convert_agents,
    convert_lengths,
    convert_distillation,
)
SUPERVISED_RULES: Rules = (
    convert_program,
    convert_running,
    convert_back_end,
    convert_supervised,
    convert_supervised_schedule,
    convert_own_configuration,
)
NOT_TRAINING = ("main_generation", "main_eval", "model_merger")
UNKNOWN_KEY = "this key of veRL's is not known here: see whether the run needs it"


@dataclass(frozen=True, slots=True)
class Converted:
    """A configuration, and a report of the settings that are not in it."""

    body: str
    report: tuple[str, ...]
    values: dict[str, JsonValue]

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
    for rule in SUPERVISED_RULES if settings.is_supervised else RULES:
        rule(work)
    for setting in list(settings.unhandled()):
        settings.take(setting.key)
        _convert_setting(work, setting)
    convert_defaults(work)
    _advise_on_unknown(work)
    body = work.draft.yaml()
    report = work.report.lines(settings.remarks)
    report += _read_together(settings, "\n".join([body, *report]))
    return Converted(body, tuple(report), work.draft.values())


def _advise_on_unknown(work: Conversion) -> None:
    """Advises the user to write values that are empty or known only by running the script."""
    leaves = list(work.draft.leaves())
    empty = [f"`{key}`" for key, value in leaves if value == ""]
    if empty:
        work.report.advice.append(f"{', '.join(empty)}: empty in what was given, write a value")
    keys = [f"`{key}`" for key, value in leaves if UNKNOWN in str(value)]
    if keys:
        work.report.advice.append(
            f"{', '.join(keys)}: write a value for {UNKNOWN}, which only running the script would "
            "show; --env NAME=VALUE gives it to the script's variables"
        )


def _read_together(settings: VerlSettings, text: str) -> list[str]:
    """Lists the settings that the rules read without a line of their own."""
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
    elif row is None:
        near = near_key(setting.key, supervised=work.settings.is_supervised)
        hint = f"; did you mean `{near}`?" if near else ""
        work.report.missing.append((setting, UNKNOWN_KEY + hint))
    elif setting.value is None:
        work.report.not_needed.append((setting, "null leaves it to the default"))
    elif setting.value == {}:
        work.report.not_needed.append((setting, "it is empty"))
    elif setting.value in row.neutral:
        work.report.not_needed.append((setting, "that is so here in any case"))
    elif setting.key.startswith("critic.") and not work.has_critic:
        work.report.not_needed.append((setting, "the algorithm has no critic"))
    else:
        _convert_by_row(work, setting, row)


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
    """Writes a line, unless another key of veRL's has written it."""
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
