"""Converts what EasyR1 alone has: its reward function, its prompts, and changes of its code."""

import re
from pathlib import Path

from trinity.config.plan.arithmetic import model_keys
from trinity.verl.easy_r1 import CHANGING, NAME, file_of
from trinity.verl.fork_rewards import digest, is_verls
from trinity.verl.rules.data import INPUT
from trinity.verl.rules.fork_reward import REWARD_TYPE, shown
from trinity.verl.rules.rewards import tasksets_of
from trinity.verl.work import Conversion

PART = "easy_r1_parts"
_FUNCTIONS = ("worker.reward.reward_function", "worker.reward.score_function")
_KIND = "worker.reward.reward_type"
_VISION = re.compile(r"vl\b|vl[-_]|vision|llava|omni", re.IGNORECASE)
_FILE = '''"""The reward and the prompts of a script of EasyR1, by `trinity config from-verl`."""
'''
_REWARD = """
from trinity.rewards.easy_r1 import FunctionReward


class Reward(FunctionReward):
    path = {path!r}
    digest = {digest!r}
    function = {function!r}
    arguments = {arguments}
    kind = {kind!r}
"""
_ASK = """
from trinity.workflows.simple_workflow import FormattedPrompt


class Ask(FormattedPrompt):
    template = {template!r}
    min_pixels, max_pixels = {min_pixels}, {max_pixels}
"""


def convert_easy_r1(work: Conversion) -> None:
    """Writes the classes of a plug-in folder that score and ask as EasyR1 does."""
    if work.settings.dialect != NAME:
        return
    written = _reward(work) + _prompts(work)
    if written:
        work.parts[f"{PART}.py"] = _FILE + written
        work.report.advice.append(
            f"--output writes the folder with {PART}.py: give it as `--plugin-dir` to `trinity "
            "config check` and `trinity run`"
        )
    _report_changes(work)


def _reward(work: Conversion) -> str:
    """The class that calls the script's function."""
    kind = str(work.settings.value(_KIND, "batch"))
    found = [setting for key in _FUNCTIONS if (setting := work.settings.take(key)) is not None]
    arguments = {}
    for setting in work.settings.all():
        section, kwargs, name = setting.key.partition("_function_kwargs.")
        if kwargs and section.startswith("worker.reward."):
            work.report_not_needed(setting.key, f"{PART}.Reward has it")
            arguments[name] = setting.value
    if not found:
        work.report.advice.append(f"the script names no reward function: give `{REWARD_TYPE}`")
        return ""
    file, colon, function = str(found[0].value).rpartition(":")
    path = file_of(work.settings, file if colon else function)
    if path is None:
        answer = "there is no such file here or above the script: start where it is"
        work.report.missing.append((found[0], answer))
        return ""
    work.put(REWARD_TYPE, f"{PART}.Reward", found[0])
    if "batch" in kind:
        work.report.advice.append(
            f"`{path.name}` is given one answer at a time, as a batch of one: if it compares "
            "answers, write that as an operator (docs/operators.md)"
        )
    return _REWARD.format(
        path=str(path),
        digest=digest(path),
        function=function if colon else "main",
        arguments=shown(arguments),
        kind=kind,
    )


def _prompts(work: Conversion) -> str:
    """The class that asks with the script's template and its sizes of images."""
    given = work.settings.take("data.format_prompt")
    path = None if given is None or not given.value else file_of(work.settings, str(given.value))
    if given is not None and given.value and path is None:
        answer = "there is no such file here or above the script: its text would not be asked"
        work.report.missing.append((given, answer))
    sizes = {name: work.settings.take(f"data.{name}") for name in ("min_pixels", "max_pixels")}
    has_images = _takes_images(work)
    if path is None and not has_images:
        return ""
    origin = given or "EasyR1's sizes of images"
    work.put(f"{INPUT}.default_workflow_type", f"{PART}.Ask", origin)
    return _ASK.format(
        template="{{ content }}" if path is None else path.read_text(encoding="utf-8"),
        **{
            name: setting.value if setting is not None and has_images else None
            for name, setting in sizes.items()
        },
    )


def _takes_images(work: Conversion) -> bool:
    """Keeps the column of images for models that see them; returns True if it is kept."""
    model = work.settings.peek("actor_rollout_ref.model.path")
    keys = model_keys(Path(str(model)).expanduser(), {})
    is_vision = "vision_config" in keys if keys is not None else bool(_VISION.search(str(model)))
    for name, why in (
        ("image_key", "" if is_vision else "the model reads texts"),
        ("video_key", "videos are not read: a row with one is refused"),
    ):
        for taskset in tasksets_of(work) if why else ():
            work.draft.remove(f"{taskset}.format.{name}")
        if why:
            work.report_not_needed(f"data.{name}", why)
    if is_vision and work.settings.peek("data.image_key") is None:
        for taskset in tasksets_of(work):
            work.put(f"{taskset}.format.image_key", "images", "EasyR1's default")
    return is_vision


def _report_changes(work: Conversion) -> None:
    """Names files of the copy that decide an update and that EasyR1 never had."""
    folder = work.folder_of_copy
    for name in CHANGING if folder is not None else ():
        assert folder is not None
        if (folder / name).is_file() and not is_verls(folder / name):
            work.report.changed.append(
                f"`{name}` differs from all versions of EasyR1 until January 2026: its changes are "
                "not converted, write them as an advantage or a loss (docs/algorithms.md)"
            )
