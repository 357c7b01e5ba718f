"""veRL's settings: each key with its value and its origin."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trinity.verl.json_value import JsonValue
from trinity.verl.override_grammar import read_value

_REFERENCE = re.compile(
    r"\$\{(?P<select>oc\.select:)?\s*(?P<key>\.*[A-Za-z_][\w.]*)\s*(?:,\s*(?P<default>[^${}]*))?\}"
)
"""References without nested ones, which are resolved first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of veRL's."""

    key: str
    value: JsonValue
    where: str
    """`run.sh:12`, `command line`."""


@dataclass(slots=True)
class VerlSettings:
    """All of veRL's settings, later over earlier ones, and the keys that were already taken.

    setting = settings.take("data.train_batch_size")
    """

    module: str = ""
    """The module that was started, such as `verl.trainer.main_ppo`; empty for keys alone."""
    remarks: list[str] = field(default_factory=list)
    """Remarks for the user on how the sources were read."""
    _held: dict[str, Setting] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    @property
    def is_supervised(self) -> bool:
        """True if supervised fine-tuning was started."""
        if self.module:
            return "sft_trainer" in self.module
        tops = {key.partition(".")[0] for key in self._held}
        return bool(tops & {"model", "optim"}) and "actor_rollout_ref" not in tops

    def put(self, setting: Setting) -> None:
        """Sets a key; adds a remark if it replaces another value."""
        before = self._held.get(setting.key)
        if before is not None and before.value != setting.value:
            self.remarks.append(
                f"{setting.where}: {setting.key} replaces the {before.value!r} of {before.where}"
            )
        self._held[setting.key] = setting

    def remove(self, key: str, where: str) -> None:
        """Removes a key and all keys below it, as `~key` does."""
        for name in [held for held in self._held if held == key or held.startswith(f"{key}.")]:
            del self._held[name]
        self.remarks.append(f"{where}: ~{key} removes the key")

    def has(self, key: str) -> bool:
        """True if the key is set."""
        return key in self._held

    def take(self, key: str) -> Setting | None:
        """Takes the setting of a key, which then counts as handled."""
        self._taken.add(key)
        return self._held.get(key)

    def value(self, key: str, default: JsonValue) -> JsonValue:
        """Takes the value of a key, or veRL's default; the key then counts as handled."""
        setting = self.take(key)
        return default if setting is None or setting.value is None else setting.value

    def peek(self, key: str) -> JsonValue:
        """The value of a key that is handled elsewhere; None if it is not set."""
        setting = self._held.get(key)
        return None if setting is None else setting.value

    def all(self) -> list[Setting]:
        """Every setting."""
        return list(self._held.values())

    def left(self) -> Iterator[Setting]:
        """Yields settings that were not taken, in order of first appearance."""
        yield from [setting for key, setting in self._held.items() if key not in self._taken]

    def fill_in_references(self) -> None:
        """Replaces `${data.max_prompt_length}` by the value of that key."""
        for key, setting in list(self._held.items()):
            value = self._filled(setting.value, key, seen=frozenset({key}))
            if value is None and setting.value is not None:
                del self._held[key]  # a reference to an unset key counts as not set
            else:
                self._held[key] = Setting(key=key, value=value, where=setting.where)

    def _filled(self, value: JsonValue, key: str, seen: frozenset[str]) -> JsonValue:
        if isinstance(value, list):
            return [self._filled(item, key, seen) for item in value]
        while isinstance(value, str) and (found := _REFERENCE.search(value)):
            target = self._referred(found, key, seen)
            if found[0] == value:
                return self._filled(target, key, seen)
            value = value.replace(found[0], str(target))
        return value

    def _referred(self, found: re.Match[str], key: str, seen: frozenset[str]) -> JsonValue:
        """The value of a reference at `key`; leading dots go up from there."""
        name = found["key"].lstrip(".")
        if up := len(found["key"]) - len(name):
            name = ".".join([*key.split(".")[:-up], name])
        if name in self._held and name not in seen:
            return self._filled(self._held[name].value, name, seen | {name})
        if found["select"] is None and not up:
            self.remarks.append(f"`{found[0]}` is not set by anything given: write its value")
            return name
        return read_value(found["default"]) if found["default"] else None
