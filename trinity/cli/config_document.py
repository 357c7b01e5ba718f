"""Writes the tables of docs/configuration.md from the sections, with veRL's names of each key.

python -m trinity.cli.config_document docs/configuration.md [--check]
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from trinity.config.changes.rules import ENGINE_ARGUMENTS, RULES, ChangeKind, ChangeRule
from trinity.config.docs.catalog import ConfigKey, all_keys
from trinity.config.docs.explain import readers_of
from trinity.config.loading.verl_keys import (
    PLANNED_DEFAULTS,
    PLANNED_REASONS,
    RENAMED_KEYS,
    WITHOUT_EFFECT,
)
from trinity.config.schema.base import KeyStatus, Section, format_value
from trinity.runtime.doc_tables import fill_tables, write_page
from trinity.verl.key_table import verl_names

Row = tuple[str, ...]


def main() -> None:
    """Writes the tables, or reports that they differ from the code."""
    write_page("All keys, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with its tables generated from the code."""
    return fill_tables(text, lambda name: TABLES[name]())


@cache
def _known() -> tuple[ConfigKey, ...]:
    return tuple(key for key in all_keys() if not key.is_section)


@cache
def _distinct() -> tuple[ConfigKey, ...]:
    """Each key of a section once, at its first place; a key that acts anywhere counts as acting."""
    found: dict[tuple[type[Section], str], ConfigKey] = {}
    for key in _known():
        known = found.setdefault((key.section, key.name), key)
        if key.status is KeyStatus.ACTS and known.status is not KeyStatus.ACTS:
            found[key.section, key.name] = key
    return tuple(found.values())


def _table(rows: Iterator[Row]) -> Iterator[str]:
    head = next(rows)
    yield from (_line(head), _line(tuple("---" for _ in head)), *map(_line, rows))


def _line(cells: Row) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _counts() -> Iterator[Row]:
    """Counts keys by status; a key shared by several sections counts once."""
    yield ("Keys", "Number")
    counted = Counter(key.status for key in _distinct())
    for status in KeyStatus:
        yield (str(status), str(counted[status]))
    yield (
        "verl's, below `trainer.trainer_config`: used under the name here",
        str(len(RENAMED_KEYS)),
    )
    yield ("verl's: accepted, without effect here", str(len(WITHOUT_EFFECT)))
    yield ("verl's: planned, with a value that happens anyway", str(len(PLANNED_DEFAULTS)))


def _sections() -> Iterator[str]:
    """A heading and a table for each kind of section that has keys which act."""
    places: dict[type[Section], list[str]] = {}
    for key in _known():
        if key.status is KeyStatus.ACTS:
            path = key.path.rpartition(".")[0]
            known = places.setdefault(key.section, [])
            known += [path] if path not in known else []
    for section, paths in places.items():
        heading = ", ".join(f"`{path}`" if path else "At the top" for path in paths)
        yield f"\n### {heading}\n"
        first = [key for key in _known() if key.section is section]
        at = [key for key in first if key.path.rpartition(".")[0] == paths[0]]
        yield from _table(_acting([key for key in at if key.status is KeyStatus.ACTS]))


def _acting(keys: list[ConfigKey]) -> Iterator[Row]:
    yield ("Key", "What it is", "Type", "Default", "Read by", "In verl")
    for key in keys:
        yield (
            f"`{key.name}`",
            _with_values(key),
            key.type,
            "" if key.is_required else f"`{format_value(key.path, key.default)}`",
            ", ".join(readers_of(key)),
            ", ".join(f"`{name}`" for name in verl_names(key.plain_path)),
        )


def _with_values(key: ConfigKey) -> str:
    also = [f"`{value}` is `{name}`" for value, name in key.other_values.items()]
    planned = [f"`{value}` ({what})" for value, what in key.planned_values.items()]
    text = f"{key.meaning} Also: {', '.join(also)}." if also else key.meaning
    return f"{text} Planned: {', '.join(planned)}." if planned else text


def _others(status: KeyStatus) -> Iterator[str]:
    """Table of the keys with a status, each under the first section that holds it."""
    yield from _table(_other_rows(status))


def _other_rows(status: KeyStatus) -> Iterator[Row]:
    is_renamed = status is KeyStatus.RENAMED
    yield ("Older name", "Name here") if is_renamed else ("Key", "What it is", "Default", "Reason")
    for key in _distinct():
        if key.status is not status:
            continue
        if is_renamed:
            yield (f"`{key.path}`", f"`{key.reason}`")
        else:
            default = f"`{format_value(key.path, key.default)}`"
            yield (f"`{key.path}`", key.meaning, default, key.reason)


def _verl() -> Iterator[Row]:
    yield ("verl's key", "What becomes of it")
    for name, renamed in RENAMED_KEYS.items():
        yield (f"`{name}`", f"used as `{renamed.to[1:]}`")
    for name, mark in WITHOUT_EFFECT.items():
        yield (f"`{name}`", f"without effect here: {mark.reason}")
    for name, value in PLANNED_DEFAULTS.items():
        why = f": {PLANNED_REASONS[name]}" if name in PLANNED_REASONS else ""
        yield (f"`{name}`", f"planned; `{format_value(name, value)}` is what happens{why}")


def _changes() -> Iterator[Row]:
    """The keys by what becomes of a run that goes on with another value."""
    yield ("Changed keys", "The run", "Why, and what to do")
    for kind in ChangeKind:
        for rule in RULES:
            if rule.kind is kind:
                keys = ", ".join(_shown_keys(rule.keys))
                why = f"{rule.why}: {rule.instead}" if rule.instead else rule.why
                yield (keys, _consequence(rule), why)


def _shown_keys(keys: Sequence[str]) -> Iterator[str]:
    """Yields the keys; arguments of an engine stand behind their section, once."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        if section.endswith(f".{ENGINE_ARGUMENTS}"):
            sections.setdefault(section, []).append(name)
        else:
            yield f"`{key}`"
    for section, names in sections.items():
        yield f"`{section}` with {', '.join(f'`{name}`' for name in names)}"


def _consequence(rule: ChangeRule) -> str:
    match rule.kind:
        case ChangeKind.FREE:
            return "goes on; bits may differ" if rule.rounds else "goes on"
        case ChangeKind.EXPERIMENT if rule.holds_from == "rollout":
            return "goes on with `--accept-changes`, from its next batch"
        case ChangeKind.EXPERIMENT:
            return "goes on with `--accept-changes`, from its checkpoint"
        case ChangeKind.IMPOSSIBLE:
            return "is refused"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "counts": lambda: _table(_counts()),
    "changes": lambda: _table(_changes()),
    "sections": _sections,
    "no effect": lambda: _others(KeyStatus.NO_EFFECT),
    "renamed": lambda: _others(KeyStatus.RENAMED),
    "planned": lambda: _others(KeyStatus.PLANNED),
    "verl": lambda: _table(_verl()),
}


if __name__ == "__main__":
    main()
