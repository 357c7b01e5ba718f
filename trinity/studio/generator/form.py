"""Draws fields of the schema, and keeps the values of the form in the session."""

import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment
from trinity.studio.generator.document import Tree, values_of
from trinity.studio.generator.fields import FieldKind, FieldSpec, field_specs
from trinity.studio.generator.registry import CONFIG_GENERATORS, ConfigEntry

MAX_EXACT = 2**53 - 1
"""A browser's numbers are exact up to here."""
NAMES: Mapping[str, Callable[[], Sequence[str]]] = {
    "algorithm_type": lambda: ALGORITHM_TYPES.names(),
    "default_workflow_type": lambda: WORKFLOWS.names(),
    "default_reward_fn_type": lambda: REWARDS.names(),
}
"""Fields whose values are names of parts; plug-ins add some."""
FLAG_CHOICES = ("true", "false")
MODE_KEY = "_form_mode"
NEW_DOCUMENT: Tree = {"project": "trinity", "name": "rft"}
_registering = threading.Lock()
BASE_KEY = "_form_base"
"""The document that the form lays its values over."""


def register_entries() -> None:
    """Registers the fields of the schema and then plug-ins, which may replace them; once a process.

    Raises: UserError naming the plug-in that cannot be read.
    """
    with _registering:  # pages of several browsers may be the first
        _register_entries()


@functools.cache
def _register_entries() -> None:
    for name, spec in field_specs().items():
        CONFIG_GENERATORS.add(
            ConfigEntry(
                name=name,
                draw=functools.partial(draw_field, spec),
                default=spec.widget_default,
                section=spec.section,
                path=spec.path,
            )
        )
    load_plugins(plugin_dirs_from_environment())


def keep_session() -> None:
    """Gives every entry its value; Streamlit forgets those of widgets that are not shown."""
    for name, default in CONFIG_GENERATORS.default_config.items():
        value = st.session_state.get(name, default)
        st.session_state[name] = list(value) if isinstance(value, tuple) else value
    st.session_state.setdefault(BASE_KEY, copy.deepcopy(NEW_DOCUMENT))
    total = _number("node_num") * _number("gpu_per_node")
    engines = _number("engine_num") * _number("tensor_parallel_size")
    st.session_state["total_gpu_num"] = total
    st.session_state["trainer_gpu_num"] = max(total - engines, 0) or (1 if total == 0 else 0)


def _number(name: str) -> int:
    value = st.session_state.get(name)
    return value if isinstance(value, int) else 0


def load_document(tree: Tree) -> None:
    """Starts the form from a document."""
    st.session_state[BASE_KEY] = tree
    for name, value in values_of(tree).items():
        st.session_state[name] = value


def form_values() -> dict[str, object]:
    """Returns the values of all entries with a path."""
    return {
        name: st.session_state.get(name)
        for name, entry in CONFIG_GENERATORS.entries.items()
        if entry.path
    }


def draw_field(spec: FieldSpec, key: str) -> None:
    """Draws the widget of a field; its value is in the session under `key`."""
    shared: dict[str, Any] = {"key": key, "help": help_of(spec)}
    match spec.kind:
        case FieldKind.FLAG:
            st.checkbox(label_of(spec), **shared)
        case FieldKind.CHOICE:
            _draw_choice(spec, key, spec.choices or FLAG_CHOICES, shared)
        case FieldKind.WHOLE:
            st.number_input(
                label_of(spec),
                min_value=_bound(spec.minimum),
                max_value=_bound(spec.maximum),
                value=None,
                step=1,
                **shared,
            )
        case FieldKind.NUMBER:
            st.number_input(
                label_of(spec),
                min_value=_real(spec.minimum),
                max_value=_real(spec.maximum),
                value=None,
                format="%g",
                **shared,
            )
        case FieldKind.SECRET:
            st.text_input(label_of(spec), value=None, type="password", **shared)
        case _ if spec.name in NAMES:
            _draw_choice(spec, key, NAMES[spec.name](), shared, is_open=True)
        case _:
            st.text_input(label_of(spec), value=None, **shared)


def _draw_choice(
    spec: FieldSpec,
    key: str,
    choices: Sequence[str],
    shared: Mapping[str, Any],
    *,
    is_open: bool = False,
) -> None:
    """Draws a list to choose from; a value of the document that is not in it stays."""
    value = st.session_state.get(key)
    others = [value] if isinstance(value, str) and value not in choices else []
    st.selectbox(
        label_of(spec),
        [*choices, *others],
        index=None,
        accept_new_options=is_open,
        placeholder="as the algorithm or the model has it",
        **shared,
    )


def _bound(bound: float | None) -> int | None:
    return int(bound) if bound is not None and abs(bound) <= MAX_EXACT else None


def _real(bound: float | None) -> float | None:
    return float(bound) if bound is not None else None


def label_of(spec: FieldSpec) -> str:
    """Returns the label of a field: the end of its key, which this project has written."""
    return f"`{'.'.join(spec.path.split('.')[-2:])}`"


def help_of(spec: FieldSpec) -> str:
    """Returns the meaning, type and veRL name of a field, which this project has written."""
    verl = f" In veRL: {', '.join(f'`{name}`' for name in spec.verl)}." if spec.verl else ""
    default = f" Default: `{spec.default}`." if spec.default not in (None, "", (), {}) else ""
    return f"`{spec.path}`: {spec.meaning} Values: {spec.type}.{default}{verl}"
