"""Report of veRL's settings that are not in the YAML, with what to do about them."""

from dataclasses import dataclass, field

from trinity.verl.settings import Setting


@dataclass(frozen=True, slots=True)
class Entry:
    """Settings that share one answer."""

    settings: tuple[Setting, ...]
    answer: str


@dataclass(slots=True)
class Report:
    """Collects every setting that did not become a line of its own."""

    missing: list[tuple[Setting, str]] = field(default_factory=list)
    """Settings without counterpart, with what to do."""
    needless: list[tuple[Setting, str]] = field(default_factory=list)
    """Settings that need nothing, with the reason."""
    advice: list[str] = field(default_factory=list)
    """What else to look at before the first run."""

    def lines(self, remarks: list[str]) -> list[str]:
        """The whole report as plain text."""
        lines: list[str] = []
        for title, entries in (
            ("Without counterpart here", _grouped(self.missing)),
            ("Needs nothing here", _grouped(self.needless)),
        ):
            lines += _titled(title, [line for entry in entries for line in _entry_lines(entry)])
        lines += _titled("Look at before the first run", [f"- {line}" for line in self.advice])
        lines += _titled("How the script was read", [f"- {remark}" for remark in remarks])
        return lines


def _titled(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _grouped(found: list[tuple[Setting, str]]) -> list[Entry]:
    groups: dict[str, list[Setting]] = {}
    for setting, answer in found:
        groups.setdefault(answer, []).append(setting)
    return [Entry(tuple(settings), answer) for answer, settings in groups.items()]


def _entry_lines(entry: Entry) -> list[str]:
    shown = [f"{setting.key}={_shown(setting)} ({setting.where})" for setting in entry.settings]
    if len(shown) == 1:
        return [f"- {shown[0]}: {entry.answer}"]
    return [f"- {entry.answer}:", *(f"    {line}" for line in shown)]


def _shown(setting: Setting) -> str:
    text = str(setting.value)
    return text if len(text) <= 60 else f"{text[:57]}..."
