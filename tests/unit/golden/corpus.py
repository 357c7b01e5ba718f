"""Records sections of results as JSON files and says in what new results differ from them."""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.source_names import ROOT

RECORDED = Path(__file__).parent / "recorded"
MAX_LINES = 120
HOW_TO_RECORD = (
    "If the change is meant: python -m tests.unit.golden {section}, and read `git diff` of "
    "tests/unit/golden/recorded."
)


def text_of(results: object) -> str:
    """Canonical JSON."""
    return json.dumps(results, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def record(section: str, results: object) -> Path:
    """Write the results of a section; answers the file."""
    file = RECORDED / f"{section}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(results), encoding="utf-8")
    return file


def recorded(section: str) -> Any:
    """What was recorded of a section."""
    return json.loads((RECORDED / f"{section}.json").read_text(encoding="utf-8"))


def difference(section: str, before: object, after: object) -> str:
    """A diff of recorded and new results, case by case; empty if there is none."""
    old, new = text_of(before), text_of(after)
    if old == new:
        return ""
    lines = list(_lines(before, after))
    left_out = [f"... {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    how = HOW_TO_RECORD.format(section=section)
    return "\n".join([f"`{section}` is not what was recorded:", *lines[:MAX_LINES], *left_out, how])


def _lines(before: object, after: object) -> list[str]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        old, new = text_of(before).splitlines(), text_of(after).splitlines()
        return list(difflib.unified_diff(old, new, "recorded", "now", n=1, lineterm=""))
    lines = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "(no such case)"), after.get(name, "(no such case)")
        if text_of(old) != text_of(new):
            lines += [f"=== {name}", *_lines([old], [new])]
    return lines


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
