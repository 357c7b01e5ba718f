"""What the rules of a conversion share: veRL's settings, our draft and the report."""

import re
from dataclasses import dataclass, field

from trinity.errors import UserError
from trinity.verl.draft import Draft
from trinity.verl.json_value import JsonValue
from trinity.verl.report import Report
from trinity.verl.settings import Setting, VerlSettings

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What veRL leaves open, because its rollout and its training take turns on all GPUs."""

    engine_num: int | None = None
    """Rollout engines; None gives them about a quarter of the GPUs."""
    sync_offset: int = 1
    """Explore steps that rollout may be ahead."""


@dataclass(slots=True, kw_only=True)
class Work:
    """One conversion."""

    settings: VerlSettings
    choices: Choices = Choices()
    draft: Draft = field(default_factory=Draft)
    report: Report = field(default_factory=Report)

    @property
    def has_critic(self) -> bool:
        """Whether the algorithm, once it is converted, has one."""
        return self.draft.get("algorithm.advantage_fn") in ("ppo", "gae", "ppo_unmasked")

    def put(self, ours: str, value: JsonValue, source: Setting | str, note: str = "") -> None:
        """Write a line of the draft, with its origin."""
        origin = source if isinstance(source, str) else f"{source.where} {source.key}"
        self.draft.put(ours, value, f"{origin}; {note}" if note else origin)

    def carry(self, verl: str, ours: str, default: JsonValue, note: str = "") -> JsonValue:
        """Take a key of veRL's, or its default, to one of ours; returns the value."""
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            self.put(ours, default, f"veRL's default of {verl}", note)
            return default
        self.put(ours, setting.value, setting, note)
        return setting.value

    def integer(self, verl: str, default: int) -> int:
        """The number that a key holds, or its default.

        Raises: UserError for what is no number: the arithmetic of batches stands on it.
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
                f"{setting.where}: {verl}={setting.value} is no number, which the arithmetic of "
                f"batches and GPUs needs: give {verl}=<number> after the file"
            ) from None

    def number(self, verl: str, default: int, ours: str) -> int:
        """The same, but what is no number is the default, with what to do about it."""
        setting = self.settings.take(verl)
        text = default if setting is None or setting.value is None else str(setting.value)
        if isinstance(text, int) or text.isdigit():
            return int(text)
        names = _VARIABLE.findall(text)
        give = "".join(f"--env {name}=<number>, or " for name in names)
        self.report.advice.append(
            f"{verl}={text} is no number: {default} is taken, give {give}`{ours}` in the YAML"
        )
        return default

    def origin(self, verl: str, value: JsonValue) -> str:
        """`run.sh:12 data.train_batch_size=1024`, or that it is veRL's default."""
        setting = self.settings.take(verl)
        if setting is None or setting.value is None:
            return f"veRL's default {verl}={value}"
        return f"{setting.where} {verl}={value}"

    def miss(self, verl: str, answer: str) -> None:
        """Report a key, if it is given, as one without counterpart."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.missing.append((setting, answer))

    def pass_over(self, verl: str, why: str) -> None:
        """Report a key, if it is given, as one that needs nothing."""
        if (setting := self.settings.take(verl)) is not None:
            self.report.needless.append((setting, why))
