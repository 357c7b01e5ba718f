"""Converts rewards: the choice by the rows' `data_source`, managers, and users' functions."""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from trinity.verl.rules.fork_reward import REWARD_TYPE as _REWARD_TYPE
from trinity.verl.rules.fork_reward import put_fork_reward
from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue
from trinity.verl.work import Conversion

INPUT = "buffer.explorer_input"
DATA_SOURCE = "data_source"
"""veRL's default of `data.reward_fn_key`."""
DAPO_REWARD = "math_dapo_reward"
_MANAGERS = ("reward_manager.name", "reward.reward_manager.name", "reward_model.reward_manager")
"""The older name last: veRL takes it where both are given."""
_PLAIN_MANAGERS = ("naive", "prime", "batch", "gdpo")
"""Managers that score each answer with the row's reward, and differ in how they call it."""
REWARD_MODELS = ("reward_model", "reward.reward_model")
_FUNCTIONS = ("custom_reward_function", "reward.custom_reward_function")
_KWARGS = ("reward.reward_kwargs", "reward_model.reward_kwargs")
_FIRST_OVERLONG = "custom_reward_function.overlong_buffer"
"""Section of DAPO's first code, which projects on it kept: there each manager reads it."""
_OVERLONG = (
    *(f"{name}.overlong_buffer_cfg" for name in _KWARGS),
    "reward_model.overlong_buffer",
    _FIRST_OVERLONG,
)
Penalty = dict[str, tuple[JsonValue, VerlSetting | str]]
"""Arguments of DAPO's penalty by our names, each with its origin."""
_OVERLONG_KEYS = ("enable", "len", "penalty_factor", "log")


def convert_rewards(work: Conversion) -> None:
    """Writes the reward of every taskset."""
    if work.settings.dialect:
        return
    if put_fork_reward(work, _manager_name(work), is_own=_has_own_function(work)):
        return
    manager = _take_manager(work)
    if reward_model_scores(work):
        _put_model_reward(work)
    elif _put_own_function(work):
        _put_or_report_overlong(work, is_read=manager == "dapo")
    elif manager == "dapo":
        work.put(_REWARD_TYPE, DAPO_REWARD, "veRL's reward manager `dapo`")
        why = "`math_dapo_reward` scores all rows"
        work.report_not_needed("data.reward_fn_key", why)
        _put_overlong(work, _put_penalty_of_reward)
    else:
        _put_reward_column(work)
        _put_or_report_overlong(work, is_read=False)


def _manager_name(work: Conversion) -> str:
    names = [work.settings.peek(key) for key in _MANAGERS]
    return next((str(name) for name in reversed(names) if name is not None), "naive")


def _has_own_function(work: Conversion) -> bool:
    return any(work.settings.peek(f"{section}.path") for section in _FUNCTIONS)


def reward_model_scores(work: Conversion) -> str:
    """Returns the section of a reward model whose scores are the rewards; empty without one.

    veRL calls the user's function where there is one, which may ask the model for texts.
    """
    peek = work.settings.peek
    if peek("distillation.enabled") is True or _has_own_function(work):
        return ""
    return next((name for name in REWARD_MODELS if peek(f"{name}.enable") is True), "")


def _put_model_reward(work: Conversion) -> None:
    """Writes the reward model's score as the reward; evaluations keep the rows' own rewards."""
    section = reward_model_scores(work)
    work.put(_REWARD_TYPE, "model_reward", f"{section}.enable=True", "veRL trains on its scores")
    setting = work.settings.take("data.reward_fn_key")
    column = DATA_SOURCE if setting is None or setting.value is None else setting.value
    origin = setting or "veRL's default of data.reward_fn_key"
    for taskset in tasksets_of(work):
        if "eval_tasksets" in taskset:
            work.put(f"{taskset}.format.reward_fn_key", column, origin, "rows are graded by it")
    _report_overlong(work)


def _take_manager(work: Conversion) -> str:
    """Takes the reward manager; returns its name, `naive` by default."""
    manager = "naive"
    for key in _MANAGERS:
        setting = work.settings.take(key)
        if setting is None or setting.value is None:
            continue
        manager = str(setting.value)
        if manager in _PLAIN_MANAGERS:
            work.report.not_needed.append((setting, "each answer is scored as it arrives"))
        elif manager == "dapo":
            work.report.not_needed.append((setting, f"it is `{DAPO_REWARD}`"))
        else:
            answer = (
                "there is no such reward manager: write it as a reward and name it in "
                f"`{_REWARD_TYPE}`"
            )
            work.report.missing.append((setting, answer))
    for name in ("source", "module.name", "module.path"):
        for section in ("reward_manager", "reward.reward_manager"):
            _take_source(work, f"{section}.{name}")
    return manager


def _take_source(work: Conversion, key: str) -> None:
    setting = work.settings.take(key)
    if setting is None:
        return
    if setting.value in (None, "register", "custom_reward_manager"):
        work.report.not_needed.append((setting, "that is veRL's default"))
    else:
        work.report.missing.append((setting, "write it as a reward, see docs/workflows.md"))


def _put_reward_column(work: Conversion) -> None:
    setting = work.settings.take("data.reward_fn_key")
    column = DATA_SOURCE if setting is None or setting.value is None else setting.value
    origin = setting or "veRL's default of data.reward_fn_key"
    for taskset in tasksets_of(work):
        work.put(f"{taskset}.format.reward_fn_key", column, origin, "it names a row's reward")


def tasksets_of(work: Conversion) -> Iterator[str]:
    """Keys of the tasksets that are written."""
    ending = ".format.prompt_key"
    keys = [key for key, _ in work.draft.leaves()]
    yield from (key.removesuffix(ending) for key in keys if key.endswith(ending))


def _put_own_function(work: Conversion) -> bool:
    """Converts a custom reward function; returns False if the script has none."""
    for section in _FUNCTIONS:
        path = work.settings.take(f"{section}.path")
        name = work.settings.take(f"{section}.name")
        if path is None or not path.value:
            if name is not None:
                work.report.not_needed.append((name, f"without `{section}.path`"))
            continue
        file = PurePosixPath(str(path.value))
        function = "compute_score" if name is None or not name.value else str(name.value)
        work.put(_REWARD_TYPE, f"{file.stem}.{function}", path)
        work.report.advice.append(
            f"`{_REWARD_TYPE}: {file.stem}.{function}` is a function of your own: give "
            f"`--plugin-dir {file.parent}` to `trinity config check` and `trinity run`. It gets "
            "veRL's arguments `data_source`, `solution_str`, `ground_truth` and `extra_info`"
        )
        why = "your own function scores all rows, and gets this column as `data_source`"
        work.report_not_needed("data.reward_fn_key", why)
        _put_own_arguments(work, f"{section}.reward_kwargs.")
        return True
    return False


def _put_own_arguments(work: Conversion, prefix: str) -> None:
    for setting in work.settings.all():
        if setting.key.startswith(prefix):
            work.settings.take(setting.key)
            for taskset in tasksets_of(work):
                name = setting.key.removeprefix(prefix)
                work.put(f"{taskset}.reward_fn_args.{name}", setting.value, setting)


def _overlong_settings(work: Conversion) -> dict[str, VerlSetting]:
    """Takes the settings of DAPO's penalty, by their names in each of its sections."""
    found: dict[str, VerlSetting] = {}
    keys = [(name, f"{section}.{name}") for section in _OVERLONG for name in _OVERLONG_KEYS]
    keys += [("max_resp_len", f"{section}.max_resp_len") for section in _KWARGS]
    for name, key in keys:
        if (setting := work.settings.take(key)) is not None:
            found[name] = setting
    return found


def _put_overlong(work: Conversion, put: Callable[[Conversion, Penalty], None]) -> None:
    """Writes DAPO's penalty of answers that are nearly or over the longest."""
    found = _overlong_settings(work)
    if (log := found.pop("log", None)) is not None:
        work.report.not_needed.append((log, "each part of a reward is a metric"))
    if "enable" not in found or found["enable"].value is not True:
        for setting in found.values():
            work.report.not_needed.append((setting, "without `overlong_buffer.enable`"))
        return
    longest = work.settings.peek("data.max_response_length") or 512
    defaults: dict[str, tuple[str, JsonValue]] = {
        "penalty_factor": ("penalty_factor", 1.0),
        "max_resp_len": ("max_response_length", longest),
        "len": ("cache_length", 4096),
    }
    penalty: Penalty = {}
    for name, (ours, default) in defaults.items():
        given = found.get(name)
        value = default if given is None or given.value is None else given.value
        origin = given or f"veRL's default {name}={default} of the overlong buffer"
        penalty[ours] = (value, origin)
    put(work, penalty)


def _put_penalty_of_reward(work: Conversion, penalty: Penalty) -> None:
    """Gives DAPO's penalty to DAPO's reward."""
    for taskset in tasksets_of(work):
        work.put(f"{taskset}.reward_fn_args.enable_overlong_penalty", True, "`overlong_buffer`")
        for name, (value, origin) in penalty.items():
            work.put(f"{taskset}.reward_fn_args.{name}", value, origin)


def _put_penalty_operator(work: Conversion, penalty: Penalty) -> None:
    """Subtracts DAPO's penalty from the rewards of another function, before groups are filtered."""
    operators = "data_processor.experience_pipeline.operators"
    first = work.draft.get(f"{operators}[0].name")
    if first is not None:
        work.put(f"{operators}[1].name", first, "`filter_groups`")
    work.put(f"{operators}[0].name", "overlong_penalty", "veRL's reward manager `dapo`")
    for name, (value, origin) in penalty.items():
        work.put(f"{operators}[0].args.{name}", value, origin)


def _put_or_report_overlong(work: Conversion, *, is_read: bool) -> None:
    """Writes DAPO's penalty as an operator if the manager reads it, else reports it."""
    if is_read or work.settings.has(f"{_FIRST_OVERLONG}.enable"):
        _put_overlong(work, _put_penalty_operator)
    else:
        _report_overlong(work)


def _report_overlong(work: Conversion) -> None:
    """Reports DAPO's penalty where another reward manager scores."""
    for setting in _overlong_settings(work).values():
        why = "veRL's reward manager `dapo` alone reads it"
        work.report.not_needed.append((setting, why))
