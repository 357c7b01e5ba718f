"""Takes an advantage and a loss of the script's own veRL, as a file of a plug-in folder."""

import re
from collections.abc import Iterator

from trinity.verl.fork_code import top_of
from trinity.verl.fork_functions import functions_that_act
from trinity.verl.fork_parts import ForkFunction, NotTaken, find_advantage, find_loss
from trinity.verl.rules.fork_reward import configuration, shown
from trinity.verl.values import JsonValue
from trinity.verl.work import Conversion

FUNCTIONS = "verl_functions"
_READ = re.compile(r"\bconfig\.((?:\w+\.)*\w+)\b(?![.(])")
_HEAD = '''"""Functions of a copy of veRL, as `trinity config from-verl` wrote them."""

from trinity.rft.algorithm.verl_copy import CopiedAdvantage, CopiedLoss

FOLDER = {folder!r}
CONFIG = {config}
'''
_CLASS = '''

class {kind}(Copied{kind}):
    """{where}"""

    folder = FOLDER
    config = CONFIG
    file = {file!r}
    name = {name!r}
    keep = {keep}
    files = {files}
    arguments = {arguments}
'''
_OF_LOSS = """    tensors = {tensors}
    loss_agg_mode = {mode!r}
"""


def take_advantage(work: Conversion, estimator: str, *, is_known: bool) -> str:
    """Takes the copy's advantage if it differs from veRL's; returns our name, or an empty text."""
    if work.checkout is None:
        return ""
    folder = work.checkout.folder
    changed = {own.name for own in functions_that_act(folder, estimator, "", work.value_of_copy)}
    if is_known and not any("advantage" in name for name in changed):
        return ""
    try:
        found = find_advantage(folder, estimator)
    except NotTaken as why:
        _report(work, f"advantage `{estimator}`", str(why))
        return ""
    return _take(work, "Advantage", found)


def take_loss(work: Conversion, mode: str, agg_mode: str, *, is_known: bool) -> str:
    """Takes the copy's loss if it differs from veRL's; returns our name, or an empty text."""
    if work.checkout is None:
        return ""
    folder = work.checkout.folder
    changed = {own.name for own in functions_that_act(folder, "", mode, work.value_of_copy)}
    if is_known and not any("policy_loss" in name or name == "agg_loss" for name in changed):
        return ""
    try:
        found = find_loss(folder, mode)
    except NotTaken as why:
        _report(work, f"loss `{mode}`", str(why))
        return ""
    return _take(work, "Loss", found, _OF_LOSS.format(tensors=shown(found.tensors), mode=agg_mode))


def _absent(text: str, config: JsonValue) -> Iterator[str]:
    """Yields the keys that an expression reads and that a configuration does not have."""
    for path in _READ.findall(text):
        section = config
        for name in path.split("."):
            if not isinstance(section, dict) or name not in section:
                yield path
                break
            section = section[name]


def _report(work: Conversion, part: str, why: str) -> None:
    work.report.advice.append(f"the {part} of your veRL is not taken: {why}")


def _take(work: Conversion, kind: str, found: ForkFunction, more: str = "") -> str:
    assert work.checkout is not None
    folder, file = work.checkout.folder, f"{FUNCTIONS}.py"
    config = configuration(work)
    if absent := [path for text in found.arguments.values() for path in _absent(text, config)]:
        _report(
            work, f"function `{found.name}`", f"no source sets `{absent[0]}`, which it is given"
        )
        return ""
    head = _HEAD.format(folder=str(folder), config=shown(config))
    text = _CLASS.format(
        kind=kind,
        where=found.where,
        file=found.file,
        name=found.name,
        keep=shown(found.keep),
        files=shown(found.files),
        arguments=shown(found.arguments),
    )
    work.parts[file] = work.parts.get(file, head) + text + more
    above = folder.relative_to(top_of(folder))
    for name, words in found.reads.items():
        known = work.taken.get(str(above / name), frozenset())
        work.taken[str(above / name)] = None if known is None else known | words
    work.taken_functions |= {name for names in found.keep.values() for name in names}
    part = f"{FUNCTIONS}.{kind}"
    work.report.advice.append(
        f"`{part}` is `{found.name}` of your veRL ({found.where}) and runs in the trainer's ranks: "
        "--output writes a folder that names it, for `--plugin-dir`. A file that has changed since "
        "stops the run"
    )
    return part
