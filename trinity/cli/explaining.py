"""`trinity config explain` and `schema`: keys, independent of any file."""

import json

from trinity.config.docs.explain import MANY, find_keys, json_schema, lines_about

WIDTH = 9


def explain_key(asked: str) -> None:
    """Prints the explanation of a key; if many keys end that way, only their names."""
    found = find_keys(asked)
    if len(found) > MANY:
        print(f"{len(found)} keys end with `{asked}`:")
        for key in found:
            print(f"  {key.path}")
        return
    for position, key in enumerate(found):
        if position:
            print()
        print(key.path)
        for word, text in lines_about(key):
            print(f"  {word:{WIDTH}}{text}" if word else f"  {text}")


def print_schema() -> None:
    """Prints the schema as JSON."""
    print(json.dumps(json_schema(), indent=1))
