"""Python loads this at its start, in every process of a run: reads of the configuration are kept.

TRINITY_TEST_CONFIG_READS=DIR PYTHONPATH=tests/support/config_reads/hook:. trinity run -c x.yaml
"""

import os
import sys
from types import FrameType
from typing import Any

DIRECTORY = os.environ.get("TRINITY_TEST_CONFIG_READS")


def _install(directory: str) -> None:
    """Append `Class.field reader` to a file of this process, once each."""
    from trinity.config.plan.parts import PlanModel
    from trinity.config.schema.base import Section

    known: set[str] = set()
    path = os.path.join(directory, f"{os.getpid()}.reads")

    def reading(self: object, name: str) -> object:
        value: object = object.__getattribute__(self, name)
        model: Any = type(self)
        if not name.startswith("_") and name in model.__pydantic_fields__:
            reader = _reader(sys._getframe(1))
            entry = f"{model.__name__}.{name} {reader}"
            if reader and entry not in known:
                known.add(entry)
                with open(path, "a") as file:
                    file.write(entry + "\n")
        return value

    Section.__getattribute__ = reading  # type: ignore[method-assign]
    PlanModel.__getattribute__ = reading  # type: ignore[method-assign]


# What looks at all keys alike reads none.
_UNSEEING = ("sifting", "catalog", "resolved", "derivations", "section", "explain", "status")


def _reader(frame: FrameType | None) -> str | None:
    """The service, the launcher or the planning that the innermost frame of ours belongs to."""
    for _ in range(12):
        if frame is None:
            return None
        path = frame.f_code.co_filename
        if "/services/" in path:
            return path.split("/services/")[1].split("/")[0]
        if "/trinity/run/launch/" in path or "/trinity/cli/" in path:
            return "launcher"
        if "/trinity/config/" in path:
            module = os.path.basename(path).removesuffix(".py")
            if module in _UNSEEING:
                return None
            if module not in ("plan", "plan_parts", "learning_rate", "rollout_correction", "steps"):
                return "planning"
        frame = frame.f_back
    return None


if DIRECTORY:
    _install(DIRECTORY)
