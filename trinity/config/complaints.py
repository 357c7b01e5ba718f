"""One sentence for each mistake in a configuration file: the key, what stands there, what to do."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trinity.config.known_keys import section_at, similar_key
from trinity.config.lines import lines_of
from trinity.config.unsupported import MOVED_KEYS, is_foreseen_key, is_foreseen_value
from trinity.errors import UserError


@dataclass(frozen=True, slots=True)
class Source:
    """The file a configuration came from, to point into it."""

    path: Path
    text: str
    lines: Mapping[str, int]
    """Dotted key to line."""

    @classmethod
    def read(cls, path: Path) -> "Source":
        """The file's text, or a sentence about why there is none."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot read the configuration {path}: {reason}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is no UTF-8 text: give a YAML file") from error
        return cls(path, text, lines_of(text))

    def at(self, key: str) -> str:
        """`file:line` of a key, the file alone if the key does not stand in it."""
        line = self.lines.get(key)
        return f"{self.path}:{line}" if line else str(self.path)


def complaints(error: ValidationError, source: Source) -> Iterator[str]:
    """A sentence for each mistake."""
    for details in error.errors(include_url=False):
        where = source.at(_dotted(details["loc"]))
        if details["type"] == "extra_forbidden":
            yield _unknown_key(details["loc"], where)
        elif details["type"] == "invalid_key":
            yield f"unknown key `{details['input']}` in {source.path}: remove it"
        elif details["type"] == "missing":
            yield f"`{_dotted(details['loc'])}` is missing in {source.path}: give it"
        else:
            yield _wrong_value(details, where)


def _dotted(location: tuple[int | str, ...]) -> str:
    """`stages[0].buffer.batch_size`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _global_key(location: tuple[int | str, ...]) -> str:
    """The key as it is called outside of stages and lists."""
    inside = location[2:] if location[:1] == ("stages",) else location
    key = ".".join(part for part in inside if isinstance(part, str))
    return key.replace("eval_tasksets", "taskset").replace("_input.tasksets", "_input.taskset")


def _unknown_key(location: tuple[int | str, ...], where: str) -> str:
    key, name = _dotted(location), str(location[-1])
    section, _, _ = _global_key(location).rpartition(".")
    if is_foreseen_key(section, name):
        return f"`{key}` in {where} is not supported yet: remove it"
    if moved := MOVED_KEYS.get(f"{section}.{name}"):
        return f"unknown key `{key}` in {where}: here it is `{moved}`"
    prefix = _dotted(location[:-1])
    valid = section_at(location[:-1])
    similar = similar_key(valid, prefix, name) if valid else None
    advice = f"did you mean `{similar}`?" if similar else "remove it"
    return f"unknown key `{key}` in {where}: {advice}"


def _wrong_value(details: ErrorDetails, where: str) -> str:
    key, value = _dotted(details["loc"]), details["input"]
    if details["type"] == "literal_error" and is_foreseen_value(_global_key(details["loc"]), value):
        expected = details["ctx"]["expected"]
        return f"`{key}: {value}` in {where} is not supported yet: give {expected}"
    return f"`{key}` in {where} {_demand(details)}, not {_shown(value)}"


def _demand(details: ErrorDetails) -> str:
    match details["type"]:
        case "model_type" | "dict_type":
            return "must be a section of keys"
        case "tuple_type" | "list_type":
            return "must be a list"
        case "string_type":
            return "must be a text (numbers in quotes)"
        case "string_pattern_mismatch":
            return f"must match {details['ctx']['pattern']}"
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
    demand = re.sub(r"^\w+ should (be|have)", r"must \1", details["msg"])
    return demand.split(", unable to parse")[0]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
