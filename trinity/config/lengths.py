"""The four lengths of a sequence, derived from those that the user gave."""

from typing import NamedTuple

from trinity.config.model import ModelConfig
from trinity.errors import UserError


class Lengths(NamedTuple):
    """Tokens."""

    model: int
    prompt: int
    response: int
    min_response: int


def resolve_lengths(model: ModelConfig, stage: str) -> Lengths:
    """Prompt and response share the sequence; what is missing is what the others leave."""
    prompt, response = model.max_prompt_tokens, model.max_response_tokens
    total = model.max_model_len
    if total is None:
        if prompt is None or response is None:
            raise UserError(
                f"stage `{stage}`: `model.max_model_len` is missing: give it, "
                "or both `model.max_prompt_tokens` and `model.max_response_tokens`"
            )
        total = prompt + response
    if total < 2:
        raise UserError(
            f"stage `{stage}`: `model.max_model_len: {total}` "
            "holds no prompt and response: give 2 or more"
        )
    if prompt is not None and response is not None and prompt + response > total:
        raise UserError(
            f"stage `{stage}`: `model.max_prompt_tokens: {prompt}` and `model.max_response_tokens: "
            f"{response}` exceed `model.max_model_len: {total}`: "
            f"shorten them, or give {prompt + response}"
        )
    prompt, response = _share(total, prompt, response)
    shortest = model.min_response_tokens
    return Lengths(total, prompt, response, shortest if shortest < response else response - 1)


def _share(total: int, prompt: int | None, response: int | None) -> tuple[int, int]:
    if prompt is None and response is None:
        return total // 2, total - total // 2
    if prompt is None:
        response = min(response or total, total - 1)
        return total - response, response
    prompt = min(prompt, total - 1)
    return prompt, total - prompt if response is None else response
