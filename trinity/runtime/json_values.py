"""Values that JSON can hold, and checks of texts that strangers send."""

import json
import re
from typing import NoReturn

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

_NULL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def holds_null(json_text: str) -> bool:
    """Returns true if a text in it has a null character, which Postgres and file names refuse."""
    return "\\u0000" in json_text and _NULL.search(json_text) is not None


def parse_untrusted(json_text: str | bytes) -> JsonValue:
    """Parses JSON of a stranger.

    Raises: ValueError for anything that cannot be stored or sent on: brackets nested deeper than
    Python can follow, half of a surrogate pair, NaN and infinite numbers.
    """
    try:
        value: JsonValue = json.loads(json_text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half of a surrogate pair") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
