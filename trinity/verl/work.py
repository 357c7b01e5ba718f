"""State that the rules of a conversion share: veRL's settings, the draft and the report."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from trinity.errors import UserError
from trinity.verl.checkout import Checkout
from trinity.verl.key_table import find_row
from trinity.verl.settings import VerlSetting, VerlSettings
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import JsonValue
from trinity.verl.written_rows import WrittenRows

SECTIONS = (
    "project",
    "group",
    "name",
    "mode",
    "seed",
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "algorithm",
    "model",
    "cluster",
    "buffer",
    "explorer",
    "synchronizer",
    "trainer",
    "data_processor",
    "monitor",
    "log",
)
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

Branch = dict[str, "Branch | Leaf"]
"""Keys in order; the elements of a list have the keys `[0]`, `[1]`..."""
ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"
CRITICS = ("ppo", "gae", "ppo_unmasked", "pf_ppo", "vapo")
"""Advantages that need a critic."""
CHANGED_TITLE = "Changed in your veRL, and not converted: port it if it matters"
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value and a comment on its origin."""

    value: JsonValue
    comment: str


class Draft:
    """Values by dotted key.

    draft = Draft()
    draft.put("buffer.batch_size", 256, "run.sh:18 actor_rollout_ref.actor.ppo_mini_batch_size")
    print(draft.yaml())
    """

    def __init__(self) -> None:
        self._root: Branch = {}

    def put(self, key: str, value: JsonValue, comment: str = "") -> None:
        """Sets a key, in lists as `tasksets[0].path`."""
        branch = self._root
        *parents, last = _parts(key)
        for parent in parents:
            below = branch.setdefault(parent, {})
            if isinstance(below, Leaf):
                below = branch[parent] = {}
            branch = below
        branch[last] = Leaf(value, comment)

    def remove(self, key: str) -> None:
        """Removes a key with all that is below it, if it is there."""
        *parents, last = _parts(key)
        branch: Branch | Leaf | None = self._root
        for parent in parents:
            branch = branch.get(parent) if isinstance(branch, dict) else None
        if isinstance(branch, dict):
            branch.pop(last, None)

    def get(self, key: str) -> JsonValue:
        """Returns the value of a key; None if it is absent or a section."""
        found: Branch | Leaf | None = self._root
        for part in _parts(key):
            found = found.get(part) if isinstance(found, dict) else None
        return found.value if isinstance(found, Leaf) else None

    def leaves(self) -> Iterator[tuple[str, JsonValue]]:
        """Every key with its value."""
        yield from _leaves(self._root, "")

    def values(self) -> dict[str, JsonValue]:
        """All of it as nested mappings and lists."""
        plain = _plain(self._root)
        assert isinstance(plain, dict)
        return plain

    def yaml(self) -> str:
        """The text, a blank line between sections."""
        parts: list[str] = []
        for name in sorted(self._root, key=_place):
            node = self._root[name]
            if isinstance(node, dict) and parts:
                parts.append("")
            parts += _lines(name, node, "")
        return "\n".join(parts) + "\n"


def _parts(key: str) -> list[str]:
    return [name or f"[{index}]" for name, index in _PART.findall(key)]


def _place(name: str) -> int:
    return SECTIONS.index(name) if name in SECTIONS else len(SECTIONS)


def _is_list(branch: Branch) -> bool:
    return bool(branch) and all(name.startswith("[") for name in branch)


def _leaves(branch: Branch, above: str) -> Iterator[tuple[str, JsonValue]]:
    for name, node in branch.items():
        key = f"{above}{name}" if name.startswith("[") else f"{above}.{name}".lstrip(".")
        if isinstance(node, Leaf):
            yield key, node.value
        else:
            yield from _leaves(node, key)


def _plain(node: Branch | Leaf) -> JsonValue:
    if isinstance(node, Leaf):
        return node.value
    if _is_list(node):
        return [_plain(inner) for inner in node.values()]
    return {name: _plain(inner) for name, inner in node.items()}


def _lines(name: str, node: Branch | Leaf, indent: str) -> Iterator[str]:
    if isinstance(node, Leaf):
        comment = f"  # {node.comment}" if node.comment else ""
        yield f"{indent}{name}: {_scalar(node.value)}{comment}"
        return
    yield f"{indent}{name}:"
    if not _is_list(node):
        for key, inner in node.items():
            yield from _lines(key, inner, indent + "  ")
        return
    for element in node.values():
        assert isinstance(element, dict)
        below = [line for key, inner in element.items() for line in _lines(key, inner, "")]
        yield f"{indent}  - {below[0]}"
        yield from (f"{indent}    {line}" for line in below[1:])


def _scalar(value: JsonValue) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True)
    return text.removesuffix("...\n").strip()


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """Settings that share one answer."""

    settings: tuple[VerlSetting, ...]
    answer: str


@dataclass(slots=True)
class ConversionReport:
    """Collects every setting that did not become a line of the YAML."""

    missing: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings without counterpart, with advice."""
    left_out: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings without counterpart that do not affect training."""
    not_needed: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings that have their effect here without a key, with the reason."""
    advice: list[str] = field(default_factory=list)
    """Further points to check before the first run."""
    changed: list[str] = field(default_factory=list)
    """Functions of the script's veRL that no version of veRL has, and that decide an update."""

    def lines(self, remarks: list[str]) -> list[str]:
        """The whole report as plain text."""
        lines: list[str] = []
        for title, entries in (
            ("Without counterpart here", _grouped(self.missing)),
            ("Left out, does not affect training", _grouped(self.left_out)),
            ("Not needed here", _grouped(self.not_needed)),
        ):
            lines += _titled(title, [line for entry in entries for line in _entry_lines(entry)])
        lines += _titled(CHANGED_TITLE, [f"- {line}" for line in self.changed])
        lines += _titled("Look at before the first run", [f"- {line}" for line in self.advice])
        lines += _titled("How the script was read", [f"- {remark}" for remark in remarks])
        return lines


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _grouped(found: list[tuple[VerlSetting, str]]) -> list[ReportEntry]:
    groups: dict[str, list[VerlSetting]] = {}
    for setting, answer in found:
        groups.setdefault(answer, []).append(setting)
    return [ReportEntry(tuple(settings), answer) for answer, settings in groups.items()]


def _entry_lines(entry: ReportEntry) -> list[str]:
    shown = [f"{setting.key}={_shown(setting)} ({setting.where})" for setting in entry.settings]
    if len(shown) == 1:
        return [f"- {shown[0]}: {entry.answer}"]
    return [f"- {entry.answer}:", *(f"    {line}" for line in shown)]


def _shown(setting: VerlSetting) -> str:
    text = str(setting.value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """Choices that veRL leaves open, as its rollout and its training alternate on all GPUs."""

    engine_num: int | None = None
    """Rollout engines; None gives them about a quarter of the GPUs."""
    sync_offset: int | None = None
    """Explore steps that rollout may be ahead; None takes the script's value, or else 1."""
    rows: WrittenRows | None = None
    """Rows that were produced by the script's dataset class, if they were written."""
    verl_version: str | None = None
    """The version that the script was written for; None is that of the checkout around it."""
    checkout: Checkout | None = None
    """The veRL that the script was written for; None is the one around it, if there is one."""


@dataclass(slots=True, kw_only=True)
class Conversion:
    """State of one conversion."""

    settings: VerlSettings
    choices: ConversionOptions = ConversionOptions()
    draft: Draft = field(default_factory=Draft)
    report: ConversionReport = field(default_factory=ConversionReport)
    checkout: Checkout | None = None
    """The veRL whose defaults and code are read."""
    folder_of_copy: Path | None = None
    """The folder of that veRL, or of a dialect's, where keys that it added are read."""
    parts: dict[str, str] = field(default_factory=dict)
    """Files of a plug-in folder that take parts of that veRL, by name."""
    taken_functions: set[str] = field(default_factory=set)
    """Functions of that veRL that these parts run."""
    taken: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """Files of its repository that these parts run, with the words that they read; None is all."""

    @property
    def has_critic(self) -> bool:
        """True if the converted algorithm has a critic."""
        return self.draft.get("algorithm.advantage_fn") in CRITICS

    def value_of_copy(self, key: str) -> JsonValue:
        """The value of a key that the script's veRL has added, by its end: `.trainer.save_only`.

        A name without a dot is the end of any key. Raises: KeyError if no key ends so, if several
        do with different values, or if veRL has it.
        """
        defaults = self.checkout.defaults("ppo_trainer") if self.checkout is not None else {}
        values = {name: each.value for name, each in defaults.items()}
        values |= {each.key: each.value for each in self.settings.all()}
        found = {name: value for name, value in values.items() if f".{name}".endswith(key)}
        is_verls = any(find_row(name, supervised=False) is not None for name in found)
        given = [value for value in found.values() if not str(value).startswith("${")]
        if len({str(value) for value in given}) != 1 or (is_verls and key.startswith(".")):
            raise KeyError(key)
        return given[0]

    def put(self, ours: str, value: JsonValue, source: VerlSetting | str, note: str = "") -> None:
        """Writes a line of the draft, with its origin."""
        origin = source if isinstance(source, str) else f"{source.where} {source.key}"
        self.draft.put(ours, value, f"{origin}; {note}" if note else origin)

    def copy(self, verl: str, ours: str, default: JsonValue, note: str = "") -> JsonValue:
        """Copies the value of a veRL key, or its default, to our key; returns the value."""
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            self.put(ours, default, f"veRL's default of {verl}", note)
            return default
        self.put(ours, setting.value, setting, note)
        return setting.value

    def integer(self, verl: str, default: int) -> int:
        """Takes the number that a key holds, or its default.

        A value that waits for a variable or for running the script is reported, with veRL's default
        until it is given.
        Raises: UserError if it is not a number, as the arithmetic of batches needs one.
        """
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            return default
        names = _VARIABLE.findall(str(setting.value))
        if names or setting.value == UNKNOWN:
            give = " ".join(f"--env {name}=<number>" for name in names) or f"{verl}=<number>"
            answer = f"give {give}: until then veRL's default of {default} stands here"
            self.report.missing.append((setting, answer))
            return default
        try:
            if isinstance(setting.value, bool | list | dict):
                raise ValueError
            return int(setting.value)
        except ValueError:
            raise UserError(
                f"{setting.where}: {verl}={setting.value} is not a number, which the arithmetic of "
                f"batches and GPUs needs: give {verl}=<number> after the file"
            ) from None

    def number(self, verl: str, default: int, ours: str) -> int:
        """Like `integer`, but advises and uses the default if the value is not a number."""
        setting = self.settings.take(verl)
        text = default if setting is None or setting.value is None else str(setting.value)
        if isinstance(text, int) or text.isdigit():
            return int(text)
        names = _VARIABLE.findall(text)
        give = "".join(f"--env {name}=<number>, or " for name in names)
        self.report.advice.append(
            f"{verl}={text} is not a number: {default} is used, give {give}`{ours}` in the YAML"
        )
        return default

    def origin(self, verl: str, value: JsonValue) -> str:
        """`run.sh:12 data.train_batch_size=1024`, or a note that it is veRL's default."""
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            return f"veRL's default {verl}={value}"
        return f"{setting.where} {verl}={value}"

    def report_missing(self, verl: str, answer: str) -> None:
        """Reports a key, if it is set, as one without counterpart."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.missing.append((setting, answer))

    def report_left_out(self, verl: str, why: str) -> None:
        """Reports a key, if it is set, as left out without affecting training."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.left_out.append((setting, why))

    def report_not_needed(self, verl: str, why: str) -> None:
        """Reports a key, if it is set, as not needed."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.not_needed.append((setting, why))
