"""What veRL was told: each key with its value and where it stands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trinity.verl.json_value import JsonValue
from trinity.verl.override_grammar import read_value

_REFERENCE = re.compile(
    r"\$\{(?P<select>oc\.select:)?\s*(?P<key>\.*[A-Za-z_][\w.]*)\s*(?:,\s*(?P<default>[^${}]*))?\}"
)
"""Those without further ones inside, which come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of veRL's."""

    key: str
    value: JsonValue
    where: str
    """`run.sh:12`, `command line`."""


@dataclass(slots=True)
class VerlSettings:
    """All that veRL was told, the later over the earlier, and which of it was looked at.

    setting = settings.take("data.train_batch_size")
    """

    module: str = ""
    """What was started, such as `verl.trainer.main_ppo`; empty if only keys were given."""
    remarks: list[str] = field(default_factory=list)
    """What the user should know of how the sources were read."""
    _held: dict[str, Setting] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    @property
    def is_supervised(self) -> bool:
        """Whether it is supervised fine-tuning that was started."""
        if self.module:
            return "sft_trainer" in self.module
        tops = {key.partition(".")[0] for key in self._held}
        return bool(tops & {"model", "optim"}) and "actor_rollout_ref" not in tops

    def put(self, setting: Setting) -> None:
        """Set a key; a value that it replaces is remarked upon."""
        before = self._held.get(setting.key)
        if before is not None and before.value != setting.value:
            self.remarks.append(
                f"{setting.where}: {setting.key} replaces the {before.value!r} of {before.where}"
            )
        self._held[setting.key] = setting

    def remove(self, key: str, where: str) -> None:
        """What `~key` does, to the key and all below it."""
        for name in [one for one in self._held if one == key or one.startswith(f"{key}.")]:
            del self._held[name]
        self.remarks.append(f"{where}: ~{key} takes the key away")

    def has(self, key: str) -> bool:
        """Whether it is given."""
        return key in self._held

    def take(self, key: str) -> Setting | None:
        """The setting of a key, which counts as dealt with."""
        self._taken.add(key)
        return self._held.get(key)

    def value(self, key: str, default: JsonValue) -> JsonValue:
        """The value of a key, or veRL's default; it counts as dealt with."""
        setting = self.take(key)
        return default if setting is None or setting.value is None else setting.value

    def peek(self, key: str) -> JsonValue:
        """The value of a key that another will deal with; None if it is not given."""
        setting = self._held.get(key)
        return None if setting is None else setting.value

    def all(self) -> list[Setting]:
        """Every setting."""
        return list(self._held.values())

    def left(self) -> Iterator[Setting]:
        """What nobody has taken, in the order of its first appearance."""
        yield from [one for key, one in self._held.items() if key not in self._taken]

    def fill_in_references(self) -> None:
        """Replace `${data.max_prompt_length}` by what that key is set to."""
        for key, setting in list(self._held.items()):
            value = self._filled(setting.value, key, seen=frozenset({key}))
            if value is None and setting.value is not None:
                del self._held[key]  # it refers to what is not set, as if it were not there
            else:
                self._held[key] = Setting(key=key, value=value, where=setting.where)

    def _filled(self, value: JsonValue, key: str, seen: frozenset[str]) -> JsonValue:
        if isinstance(value, list):
            return [self._filled(one, key, seen) for one in value]
        while isinstance(value, str) and (found := _REFERENCE.search(value)):
            target = self._referred(found, key, seen)
            if found[0] == value:
                return self._filled(target, key, seen)
            value = value.replace(found[0], str(target))
        return value

    def _referred(self, found: re.Match[str], key: str, seen: frozenset[str]) -> JsonValue:
        """What a reference at `key` comes to; dots at its beginning go up from there."""
        name = found["key"].lstrip(".")
        if up := len(found["key"]) - len(name):
            name = ".".join([*key.split(".")[:-up], name])
        if name in self._held and name not in seen:
            return self._filled(self._held[name].value, name, seen | {name})
        if found["select"] is None and not up:
            self.remarks.append(f"`{found[0]}` is not set by anything given: write its value")
            return name
        return read_value(found["default"]) if found["default"] else None
