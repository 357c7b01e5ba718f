"""What a YAML file can hold; pydantic's type of this name takes a tenth of a second to import."""

from typing import TypeAlias, Union

JsonValue: TypeAlias = Union[  # noqa: UP007  # a recursive alias must be quoted
    bool, int, float, str, list["JsonValue"], dict[str, "JsonValue"], None
]
