"""Type of a YAML file's values; pydantic's type of this name takes 0.1 s to import."""

from typing import TypeAlias, Union

JsonValue: TypeAlias = Union[  # noqa: UP007  # a recursive alias must be quoted
    bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None
]
