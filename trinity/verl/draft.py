"""Draft of the converted configuration with its comments, and the report of other settings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue

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

    def get(self, key: str) -> JsonValue:
        """The value of a key; None if nothing is there, or more than a value."""
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
    """Collects every setting that did not become a line of its own."""

    missing: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings without counterpart, with what to do."""
    left_out: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings without counterpart that change nothing in what is trained."""
    not_needed: list[tuple[VerlSetting, str]] = field(default_factory=list)
    """Settings that have their effect here without a key, with the reason."""
    advice: list[str] = field(default_factory=list)
    """What else to look at before the first run."""

    def lines(self, remarks: list[str]) -> list[str]:
        """The whole report as plain text."""
        lines: list[str] = []
        for title, entries in (
            ("Without counterpart here", _grouped(self.missing)),
            ("Left out, what is trained is the same", _grouped(self.left_out)),
            ("Needs nothing here", _grouped(self.not_needed)),
        ):
            lines += _titled(title, [line for entry in entries for line in _entry_lines(entry)])
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
