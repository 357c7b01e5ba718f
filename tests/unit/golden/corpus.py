"""Records the results of sections, and names the cases whose results differ from the record.

A case whose result is short is recorded as it is, and any other as a digest: its text is made on
demand (`text_diff`).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.source_names import ROOT

RECORDED = Path(__file__).parent / "recorded.json"
RECIPES = Path(__file__).parent / "recipes.json"
MAX_READABLE = 160
MAX_CASES = 40
WHAT_TO_DO = """\
To read the change: python -m tests.unit.golden --diff {section}
If it is meant: python -m tests.unit.golden {section}"""

Cases = Mapping[str, Any]


def text_of(results: object) -> str:
    """Canonical JSON."""
    return json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def entry_of(result: object) -> Any:
    """Returns the record of a case: its result, or a digest of a long one."""
    text = json.dumps(result, sort_keys=True, ensure_ascii=False)
    if len(text) <= MAX_READABLE:
        return json.loads(text)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]


def record(section: str, results: Cases) -> None:
    """Write the entries of a section; others stay."""
    kept = {**recorded(), section: {name: entry_of(result) for name, result in results.items()}}
    sections = [f"{_json(name)}: {{\n{_lines(kept[name])}\n}}" for name in sorted(kept)]
    RECORDED.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def _lines(entries: Cases) -> str:
    """A case a line, so that a review sees which have changed."""
    return ",\n".join(f" {_json(name)}: {_json(entries[name])}" for name in sorted(entries))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def recorded() -> dict[str, dict[str, Any]]:
    """The entries of every section by case."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}


def record_recipes(recipes: list[Any]) -> None:
    """Write the recipes of the mutations, one a line."""
    RECIPES.write_text("[\n" + ",\n".join(map(_json, recipes)) + "\n]\n", encoding="utf-8")


def recipes() -> list[Any]:
    """The recipes of the mutations."""
    return list(json.loads(RECIPES.read_text(encoding="utf-8")))


def difference(section: str, before: Cases, results: Cases) -> str:
    """The cases whose results are not those recorded; empty if there is none."""
    after = {name: entry_of(result) for name, result in results.items()}
    changed = [
        f"  {name}: {_shown(before, name)} -> {_shown(after, name)}"
        for name in sorted(before.keys() | after.keys())
        if _shown(before, name) != _shown(after, name)
    ]
    if not changed:
        return ""
    left_out = [f"  ... {len(changed) - MAX_CASES} more"] if len(changed) > MAX_CASES else []
    head = f"`{section}` differs from the record in {len(changed)} of {len(after)} cases:"
    todo = WHAT_TO_DO.format(section=section)
    return "\n".join([head, *changed[:MAX_CASES], *left_out, todo])


def _shown(entries: Cases, name: str) -> str:
    return _json(entries[name]) if name in entries else "(no such case)"


def without_places(text: str, places: Mapping[str, str]) -> str:
    """The text with paths of this machine named, the longest first: {"<tmp>": "/tmp/x"}."""
    for name, path in sorted(places.items(), key=lambda item: -len(item[1])):
        text = text.replace(path, name)
    return re.sub(rf"{re.escape(str(ROOT))}(?![\w-])", "<root>", text)


def leaves(tree: object, key: str = "") -> dict[str, Any]:
    """Dotted key to value of everything in a tree, lists entered."""
    if isinstance(tree, dict) and tree:
        items = [(f"{key}.{name}" if key else str(name), value) for name, value in tree.items()]
    elif isinstance(tree, list) and tree:
        items = [(f"{key}[{position}]", value) for position, value in enumerate(tree)]
    else:
        return {key: tree}
    return {k: v for name, value in items for k, v in leaves(value, name).items()}


def changes(base: object, tree: object) -> dict[str, Any]:
    """Leaves of `tree` that differ from those of `base`; those that are gone are `<gone>`."""
    old, new = leaves(base), leaves(tree)
    changed = {k: v for k, v in new.items() if k not in old or text_of(old[k]) != text_of(v)}
    return changed | dict.fromkeys((key for key in old if key not in new), "<gone>")
