"""What becomes of a configuration file: its resolved form and plan, or the places of mistakes."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.unit.golden.adapters import Checked, checked
from tests.unit.golden.corpus import changes, text_of, without_places

MAX_CHANGES = 60
_QUOTED = re.compile(r"`([^`]*)`")
_KEY = re.compile(r"[A-Za-z_][\w.\[\]-]*")


def outcome(file: Path) -> dict[str, Any]:
    """Everything of it but texts for people; `whole` or `delta` make it fit to be kept."""
    found = checked(file)
    told = {
        "mistakes": sorted(_place(text, file) for text in found.mistakes),
        "notices": sorted(f"{line} {kind} {key}" for kind, key, line in found.notices),
        "advice": sorted(_key(text) for text in found.advice),
        **_result(found),
    }
    kept = {name: value for name, value in told.items() if value not in ([], None)}
    text = without_places(text_of(kept), {"<file>": str(file), "<tmp>": str(file.parent)})
    result: dict[str, Any] = json.loads(text)
    return result


def whole(result: dict[str, Any]) -> dict[str, Any]:
    """The outcome with the plan's configuration as a hash: it stands in the resolved form."""
    if "plan" not in result:
        return result
    stages = [_without_config(stage) for stage in result["plan"]["stages"]]
    return {**result, "plan": {**result["plan"], "stages": stages}, "hash": _hash(result["plan"])}


def delta(base: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The outcome with only what a changed file has other than its base."""
    shown = {name: value for name, value in result.items() if name not in ("plan", "resolved")}
    if "plan" not in result:
        return shown
    old, new = whole(base), whole(result)
    return {
        **shown,
        "resolved": _limited(changes(old.get("resolved"), new["resolved"])),
        "plan": _limited(changes(old.get("plan"), new["plan"])),
        "hash": new["hash"],
    }


def _without_config(stage: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stage.items() if name != "config"}


def _limited(changed: dict[str, Any]) -> dict[str, Any]:
    """Many changes are kept as their number and a hash."""
    if len(changed) <= MAX_CHANGES:
        return changed
    return {"changes": len(changed), "hash": _hash(changed)}


def _hash(value: object) -> str:
    return hashlib.sha256(text_of(value).encode()).hexdigest()


def _result(found: Checked) -> dict[str, Any]:
    if found.plan is None or found.mistakes:
        return {}
    return {"plan": found.plan, "resolved": found.resolved}


def _place(text: str, file: Path) -> str:
    """Line and key: `4 buffer.total_steps`."""
    line = re.search(rf"{re.escape(file.name)}:(\d+)", text)
    return f"{line[1] if line else '-'} {_key(text)}"


def _key(text: str) -> str:
    """The first key that a sentence quotes, one with a dot before others."""
    quoted = [key for key in map(_as_key, _QUOTED.findall(text)) if key]
    return next((key for key in quoted if "." in key), quoted[0] if quoted else "-")


def _as_key(quoted: str) -> str:
    match = _KEY.match(quoted)
    return match[0] if match else ""
