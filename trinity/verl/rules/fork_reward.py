"""Takes the reward manager of the script's own veRL, as a file of a plug-in folder."""

from os.path import normpath
from pprint import pformat

from trinity.verl.fork_code import top_of
from trinity.verl.fork_rewards import ForkReward, find_reward
from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue
from trinity.verl.work import Conversion

REWARD_TYPE = "buffer.explorer_input.default_reward_fn_type"
PART = "verl_parts"
_SECTIONS = (
    *(f"{section}.reward_kwargs" for section in ("reward", "reward_model")),
    *(f"{section}.reward_manager" for section in ("reward", "reward_model")),
    "reward_model.overlong_buffer",
    "reward_manager",
    "custom_reward_function",
)
_MODEL = "actor_rollout_ref.model.path"
_FILE = '''"""The reward of a copy of veRL, as `trinity config from-verl` wrote it."""

from trinity.rewards.verl_manager import ManagerReward


class Reward(ManagerReward):
    """{where}"""

    folder = {folder!r}
    place = {place!r}
    files = {files}
    arguments = {arguments}
    config = {config}
    model = {model!r}
'''


def put_fork_reward(work: Conversion, manager: str, *, is_own: bool) -> bool:
    """Takes the manager of the script's veRL, unless it is veRL's; returns True if it did."""
    if work.checkout is None or is_own or work.settings.peek("reward_model.enable") is True:
        return False
    found = find_reward(work.checkout.folder, manager, work.settings.program)
    if found is None:
        return False
    if found.compares:
        setting = VerlSetting(key="reward manager", value=manager, where=found.where)
        answer = (
            f"{found.compares}, and a reward here sees one answer: write the comparison as an "
            "operator, see docs/operators.md"
        )
        work.report.missing.append((setting, answer))
        return False
    _put(work, found, manager)
    return True


def _put(work: Conversion, found: ForkReward, manager: str) -> None:
    assert work.checkout is not None
    folder = work.checkout.folder
    work.put(REWARD_TYPE, f"{PART}.Reward", f"{found.where}, the manager `{manager}`")
    work.parts[f"{PART}.py"] = _FILE.format(
        where=found.where,
        folder=str(folder),
        place=found.place,
        files=shown(dict(found.files)),
        arguments=shown(dict(found.arguments)),
        config=shown(configuration(work)),
        model=str(work.settings.peek(_MODEL)),
    )
    above = folder.relative_to(top_of(folder))
    work.taken |= {normpath(above / name): words for name, words in found.reads.items()}
    work.report.advice.append(
        f"`{REWARD_TYPE}: {PART}.Reward` is {found.where} of your veRL, with {len(found.files)} "
        "changed files: --output writes a folder that names them, for `--plugin-dir` of "
        "`trinity config check` and `trinity run`. A file that has changed since stops the run"
    )
    for setting in work.settings.all():
        if setting.key.startswith(_SECTIONS):
            work.report_not_needed(setting.key, f"{found.where} reads it, if any code does")
    work.report_not_needed("data.reward_fn_key", f"{found.where} chooses the reward")


def shown(value: object) -> str:
    """A value as Python writes it."""
    return pformat(value, indent=1, width=96, sort_dicts=False)


def configuration(work: Conversion) -> dict[str, JsonValue]:
    """The script's configuration: its settings over the defaults of its veRL."""
    assert work.checkout is not None
    found = {key: each.value for key, each in work.checkout.defaults("ppo_trainer").items()}
    found |= {each.key: each.value for each in work.settings.all() if not _is_of_launcher(each.key)}
    tree: dict[str, JsonValue] = {}
    for key, value in found.items():
        *above, last = key.split(".")
        section = tree
        for name in above:
            below = section.get(name)
            if not isinstance(below, dict):
                below = section[name] = {}
            section = below
        section[last] = value
    return tree


def _is_of_launcher(key: str) -> bool:
    """True for keys that no reward reads; variables of the environment may be secrets."""
    return key.startswith("hydra.") or "@" in key or "env_vars" in key
