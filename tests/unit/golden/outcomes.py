"""What becomes of a configuration file: its resolved form and plan, or the places of mistakes."""

import json
import re
from pathlib import Path
from typing import Any

from tests.unit.golden.adapters import Checked, checked
from tests.unit.golden.corpus import text_of, without_places

_QUOTED = re.compile(r"`([^`]*)`")
_KEY = re.compile(r"[A-Za-z_][\w.\[\]-]*")


def outcome(file: Path) -> dict[str, Any]:
    """Everything of it but texts for people."""
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
