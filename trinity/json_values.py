"""Values that JSON can hold; kept out of `types.py`, which imports numpy."""

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]
