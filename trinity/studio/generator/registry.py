"""CONFIG_GENERATORS: entries of the config generator, ours and those of plug-ins.

    @CONFIG_GENERATORS.register_config(default_value=96, path="buffer.train_batch_size")
    def set_train_batch_size(**kwargs):
        st.number_input("Train Batch Size", **kwargs)

An entry's name is the name of its function without `set_`; the function gets it as `key`, which is
also its key in `st.session_state`. A name that is registered again is replaced.
"""

import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from trinity.errors import UserError

SET, CHECK = "set_", "check_"
Function: TypeAlias = Callable[..., Any]


class Drawing(Protocol):
    """The part of Streamlit that lays entries out."""

    session_state: MutableMapping[str, object]

    def columns(self, spec: Sequence[float] | int) -> Sequence[Any]:
        """Returns columns, each a context manager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One entry of the form."""

    name: str
    draw: Callable[..., object]
    default: object = None
    visible: Callable[[], bool] | None = None
    other_configs: Mapping[str, object] = field(default_factory=dict)
    section: str = ""
    """The section of the form that shows it; empty for an entry that only others show."""
    path: str = ""
    """The key of the YAML that gets its value; empty if it is not written."""


class _PageState(threading.local):
    """The state of the page that is made in this thread: several browsers may fill a form."""

    def __init__(self) -> None:
        self.unfinished: set[str] = set()


class ConfigGenerators:
    """The entries by name; pages draw them, and the YAML takes their values by their paths."""

    def __init__(self) -> None:
        self._entries: dict[str, ConfigEntry] = {}
        self._checks: dict[str, Callable[..., object]] = {}
        self._page = _PageState()

    @property
    def entries(self) -> Mapping[str, ConfigEntry]:
        """All entries, in the order in which they were registered."""
        return self._entries

    @property
    def default_config(self) -> dict[str, object]:
        """The defaults of all entries, with those of their further keys."""
        found: dict[str, object] = {}
        for entry in self._entries.values():
            found[entry.name] = entry.default
            found.update(entry.other_configs)
        return found

    @property
    def unfinished_fields(self) -> set[str]:
        """Names of entries of this page whose values cannot be used."""
        return self._page.unfinished

    def set_unfinished_fields(self, fields: set[str]) -> None:
        """Lets checks of this page add to this set."""
        self._page.unfinished = fields

    def register_config(
        self,
        default_value: object = None,
        config_func: Function | None = None,
        visible: Callable[[], bool] | None = None,
        other_configs: Mapping[str, object] | None = None,
        *,
        section: str | None = None,
        path: str | None = None,
    ) -> Function:
        """Registers `set_<name>`; one that is there is replaced, and keeps its place in the form.

        Raises: UserError if the function has another name.
        """

        def register(function: Function) -> Function:
            self.add(
                ConfigEntry(
                    name=_name_of(function, SET),
                    draw=function,
                    default=default_value,
                    visible=visible,
                    other_configs=dict(other_configs or {}),
                    section=section or "",
                    path=path or "",
                )
            )
            return function

        return register if config_func is None else register(config_func)

    def add(self, entry: ConfigEntry) -> None:
        """Adds an entry, or replaces the one of its name."""
        before = self._entries.get(entry.name)
        if before is not None:
            entry = replace(
                entry, section=entry.section or before.section, path=entry.path or before.path
            )
        self._entries[entry.name] = entry

    def register_check(self, check_func: Function | None = None) -> Function:
        """Registers `check_<name>`, which is called after the row that shows the entry.

        Raises: UserError if the function has another name.
        """

        def register(function: Function) -> Function:
            self._checks[_name_of(function, CHECK)] = function
            return function

        return register if check_func is None else register(check_func)

    def get(self, name: str) -> Callable[[], object] | None:
        """Returns a function that draws an entry; None if it is not visible now.

        Raises: UserError if there is no such entry.
        """
        entry = self._entry(name)
        if entry.visible is not None and not entry.visible():
            return None
        return lambda: entry.draw(key=name)

    def get_check_func(self, name: str) -> Callable[[], object] | None:
        """Returns a function that checks an entry; None if it has no check or is not visible."""
        check = self._checks.get(name)
        entry = self._entry(name)
        if check is None or (entry.visible is not None and not entry.visible()):
            return None
        return lambda: check(unfinished_fields=self.unfinished_fields, key=name)

    def get_configs(
        self, *names: str, drawing: Drawing, columns_spec: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Draws a row of those entries that are visible, then what their checks say.

        Returns the column of each.
        """
        drawn = {name: draw for name in names if (draw := self.get(name)) is not None}
        if not drawn:
            return {}
        spec = columns_spec if columns_spec is not None else len(drawn)
        columns = dict(zip(drawn, drawing.columns(spec), strict=False))
        for name, column in columns.items():
            with column:
                drawn[name]()
        for name in drawn:
            if (check := self.get_check_func(name)) is not None:
                check()
        return columns

    def names_of(self, section: str) -> list[str]:
        """Returns the names of a section's entries."""
        return [entry.name for entry in self._entries.values() if entry.section == section]

    def _entry(self, name: str) -> ConfigEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise UserError(
                f"there is no entry {name!r} of the config generator: register it with "
                f"`CONFIG_GENERATORS.register_config` over a function `{SET}{name}`"
            ) from None


CONFIG_GENERATORS = ConfigGenerators()
"""The entries of this process."""


def _name_of(function: Callable[..., object], prefix: str) -> str:
    name = function.__name__
    if not name.startswith(prefix) or name == prefix:
        raise UserError(
            f"the function `{name}` must be called `{prefix}<name of the entry>` to be registered "
            "in CONFIG_GENERATORS"
        )
    return name.removeprefix(prefix)
