"""Conversions from short texts."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from trinity.verl.convert import Converted, convert
from trinity.verl.settings import read_sources
from trinity.verl.values import JsonValue
from trinity.verl.work import ConversionOptions


def converted(
    script: str, tmp_path: Path, *, name: str = "run.sh", more: Sequence[str] = (), **choices: int
) -> Converted:
    """A script's or YAML file's text, converted."""
    path = tmp_path / name
    path.write_text(script, encoding="utf-8")
    return convert(read_sources([str(path), *more]), _options(choices))


def from_keys(*overrides: str, **choices: int) -> Converted:
    """`key=value`, converted."""
    return convert(read_sources(overrides), _options(choices))


def _options(choices: Mapping[str, int]) -> ConversionOptions:
    return ConversionOptions(
        engine_num=choices.get("engine_num"), sync_offset=choices.get("sync_offset")
    )


def flat(values: JsonValue, key: str = "") -> dict[str, JsonValue]:
    """Dotted keys; lists of mappings by position."""
    if isinstance(values, dict) and values:
        found = [flat(inner, f"{key}.{name}".lstrip(".")) for name, inner in values.items()]
    elif isinstance(values, list) and any(isinstance(inner, dict) for inner in values):
        found = [flat(inner, f"{key}[{i}]") for i, inner in enumerate(values)]
    else:
        return {key: values}
    return {name: value for one in found for name, value in one.items()}


def missing(result: Converted) -> list[str]:
    """Lines of the settings without counterpart."""
    lines = list(result.report)
    title = "Without counterpart here:"
    if title not in lines:
        return []
    below = lines[lines.index(title) + 1 :]
    return list(takewhile(lambda line: line.startswith(" "), below))


def value(result: Converted, key: str) -> JsonValue:
    """Of one of our keys; KeyError if it was not written."""
    return flat(result.values)[key]
