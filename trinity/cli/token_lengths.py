"""Lengths of texts and messages in tokens, as far as a model's directory tells.

count = token_counter(directory)
render = prompt_counter(directory)
render([{"role": "user", "content": "1+1="}], count)  # tokens in the model's template
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trinity.config.checks.model import own_template
from trinity.data.chat_template import TEMPLATE_EXTENSIONS
from trinity.errors import UserError

CHARACTERS_PER_TOKEN = 3
NO_TOKENIZERS = "`trinity setup studio` to have them counted"
TEMPLATE_TOKENS = 32
"""Tokens that a chat template adds where it cannot be rendered here."""


def num_positions(directory: Path) -> int | None:
    """Returns the model's positions; None where its configuration does not say."""
    try:
        keys = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # `config check` reports the model's errors
    for place in (keys, keys.get("text_config") or {}):
        if isinstance(length := place.get("max_position_embeddings"), int):
            return length
    return None


def token_counter(directory: Path) -> Callable[[str], int]:
    """Returns a count of tokens: the tokenizer's, or an estimate where it cannot be read."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except ImportError:
        return _estimated_tokens
    except Exception as error:  # the package raises no subclass
        if type(error) is not Exception:
            raise
        return _estimated_tokens
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def guess_note(directory: Path) -> str:
    """Returns why lengths of this model are guessed, as the end of a sentence; empty if counted."""
    if token_counter(directory) is not _estimated_tokens:
        return ""
    has_package = importlib.util.find_spec("tokenizers") is not None
    why = f"{directory} has no readable tokenizer.json" if has_package else NO_TOKENIZERS
    return f", guessed at {CHARACTERS_PER_TOKEN} characters a token: {why}"


def _estimated_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def prompt_counter(
    directory: Path,
) -> Callable[[list[dict[str, str]], Callable[[str], int]], int]:
    """Returns the number of tokens of messages in the model's template, or an estimate."""
    try:
        text = own_template(directory)
        source = text if isinstance(text, str) else ""
        template = ImmutableSandboxedEnvironment(extensions=TEMPLATE_EXTENSIONS).from_string(source)
    except (UserError, TemplateError):
        source = ""

    def num_tokens(messages: list[dict[str, str]], count: Callable[[str], int]) -> int:
        plain = "\n".join(message["content"] for message in messages)
        if not source:
            return count(plain) + TEMPLATE_TOKENS
        try:
            return count(template.render(messages=messages, add_generation_prompt=True))
        except (TemplateError, TypeError):  # it wants more than messages
            return count(plain) + TEMPLATE_TOKENS

    return num_tokens
