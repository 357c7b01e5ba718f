"""Bounds that YAML would read as one number: its numbers may hold underscores."""

from collections.abc import Iterator

import yaml

from trinity.config.lines import entries_of
from trinity.config.source import Source

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def misread_bounds(source: Source) -> Iterator[str]:
    """Yields a sentence for each unquoted pair of bounds that YAML would misread."""
    for entry in entries_of(source.text):
        if "rollout_correction." not in entry.key or not isinstance(entry.value, yaml.ScalarNode):
            continue
        text = entry.value.value
        if "_" in text and entry.value.tag in _NUMBERS:
            yield (
                f"`{entry.key}: {text}` in {source.path}:{entry.line} is one number to YAML: "
                f'put the bounds in quotes, "{text}"'
            )
