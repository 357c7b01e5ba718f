"""Derives the lengths of sequences of a stage."""

from typing import NamedTuple

from trinity.config.schema.explorer import AuxiliaryModelConfig
from trinity.config.schema.model import ModelConfig
from trinity.errors import UserError


class SequenceLengths(NamedTuple):
    """Lengths in tokens."""

    model: int
    prompt: int
    response: int
    min_response: int


def resolve_lengths(model: ModelConfig) -> SequenceLengths:
    """Returns the lengths of prompt, response and sequence; missing ones follow from the others."""
    return _resolve(model, model.min_response_tokens, "model")


def resolve_auxiliary_lengths(
    model: AuxiliaryModelConfig, of_policy: SequenceLengths, at: str
) -> SequenceLengths:
    """The policy's lengths under the model's own; without a total, the policy's parts fill in."""
    shortest = model.min_response_tokens
    shortest = of_policy.min_response if shortest is None else shortest
    prompt, response = model.max_prompt_tokens, model.max_response_tokens
    total = model.max_model_len
    if total is None:
        total = of_policy.model if prompt is None and response is None else None
        prompt, response = prompt or of_policy.prompt, response or of_policy.response
    merged = AuxiliaryModelConfig.model_construct(
        max_model_len=total, max_prompt_tokens=prompt, max_response_tokens=response
    )
    if prompt and response and total and prompt + response > total:
        # Each bounds its own part of a call, and the engine the two together.
        prompt, response = min(prompt, total - 1), min(response, total - 1)
        return SequenceLengths(total, prompt, response, min(shortest, response - 1))
    return _resolve(merged, shortest, at)


def _resolve(model: ModelConfig | AuxiliaryModelConfig, shortest: int, at: str) -> SequenceLengths:
    prompt, response = model.max_prompt_tokens, model.max_response_tokens
    total = model.max_model_len
    if total is None:
        if prompt is None or response is None:
            raise UserError(
                f"`{at}.max_model_len` is missing: give it, "
                f"or both `{at}.max_prompt_tokens` and `{at}.max_response_tokens`"
            )
        total = prompt + response
    if total < 2:
        raise UserError(
            f"`{at}.max_model_len: {total}` holds no prompt and response: give 2 or more"
        )
    if prompt is not None and response is not None and prompt + response > total:
        raise UserError(
            f"`{at}.max_prompt_tokens: {prompt}` and `{at}.max_response_tokens: "
            f"{response}` exceed `{at}.max_model_len: {total}`: "
            f"shorten them, or give {prompt + response}"
        )
    prompt, response = _share(total, prompt, response)
    return SequenceLengths(
        total, prompt, response, shortest if shortest < response else response - 1
    )


def _share(total: int, prompt: int | None, response: int | None) -> tuple[int, int]:
    if prompt is None and response is None:
        return total // 2, total - total // 2
    if prompt is None:
        response = min(response or total, total - 1)
        return total - response, response
    prompt = min(prompt, total - 1)
    return prompt, total - prompt if response is None else response
