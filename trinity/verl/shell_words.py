"""Writes `key=value` for Hydra as it is typed in a shell."""

import re

from trinity.verl.json_value import JsonValue

_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)(?:,([^}]*))?\}")


def shell_word(key: str, value: JsonValue) -> str:
    """`key=value`, quoted for the shell."""
    text = f"{key}={_hydra(value)}"
    if "${" in text:
        shell = _VARIABLE.sub(_as_variable, text.replace('"', "'"))
        return f'"{shell}"'
    return text if re.fullmatch(r"[\w./=:@%+,-]*", text) else "'" + text.replace("'", '"') + "'"


def _as_variable(found: re.Match[str]) -> str:
    return f"${found[1]}" if found[2] is None else f"${{{found[1]}:-{found[2]}}}"


def _hydra(value: JsonValue) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value)
        case list():
            return "[" + ",".join(_quoted(inner) for inner in value) + "]"
        case dict():
            return "{" + ",".join(f"{name}:{_quoted(v)}" for name, v in value.items()) + "}"
    return str(value)


def _quoted(value: JsonValue) -> str:
    return f"'{value}'" if isinstance(value, str) else _hydra(value)
