"""Values that JSON can hold; apart from `types.py`, which brings numpy."""

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]
