"""State that the rules of a conversion share: veRL's settings, our draft and the report."""

import re
from dataclasses import dataclass, field

from trinity.errors import UserError
from trinity.verl.draft import ConversionReport, Draft
from trinity.verl.settings import VerlSetting, VerlSettings
from trinity.verl.values import JsonValue

ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"
CRITICS = ("ppo", "gae", "ppo_unmasked", "pf_ppo", "vapo")
"""Advantages that need a critic."""
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """Choices that veRL leaves open, as its rollout and its training alternate on all GPUs."""

    engine_num: int | None = None
    """Rollout engines; None gives them about a quarter of the GPUs."""
    sync_offset: int | None = None
    """Explore steps that rollout may be ahead; None is what the script says, or else 1."""


@dataclass(slots=True, kw_only=True)
class Conversion:
    """State of one conversion."""

    settings: VerlSettings
    choices: ConversionOptions = ConversionOptions()
    draft: Draft = field(default_factory=Draft)
    report: ConversionReport = field(default_factory=ConversionReport)

    @property
    def has_critic(self) -> bool:
        """True if the converted algorithm has a critic."""
        return self.draft.get("algorithm.advantage_fn") in CRITICS

    def put(self, ours: str, value: JsonValue, source: VerlSetting | str, note: str = "") -> None:
        """Writes a line of the draft, with its origin."""
        origin = source if isinstance(source, str) else f"{source.where} {source.key}"
        self.draft.put(ours, value, f"{origin}; {note}" if note else origin)

    def copy(self, verl: str, ours: str, default: JsonValue, note: str = "") -> JsonValue:
        """Copies a key of veRL's, or its default, to one of ours; returns the value."""
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            self.put(ours, default, f"veRL's default of {verl}", note)
            return default
        self.put(ours, setting.value, setting, note)
        return setting.value

    def integer(self, verl: str, default: int) -> int:
        """Takes the number that a key holds, or its default.

        Raises: UserError if it is not a number, as the arithmetic of batches needs one.
        """
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
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
        """The same, but with advice and the default in place of a value that is not a number."""
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
        """Reports a key, if it is set, as one that changes nothing in what is trained."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.left_out.append((setting, why))

    def report_not_needed(self, verl: str, why: str) -> None:
        """Reports a key, if it is set, as one that needs nothing."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.not_needed.append((setting, why))
