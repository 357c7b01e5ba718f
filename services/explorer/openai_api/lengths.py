"""Lengths of prompts and answers over an OpenAI-compatible address."""

from collections.abc import Iterable

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.generation import Prompt
from trinity.workflows.model import ModelWrapper


def fill_lengths(
    sampling: SamplingOverrides, model: ModelWrapper, prompts: Iterable[Prompt], *, param: str
) -> SamplingOverrides:
    """Returns the parameters of a call whose only limit is the model's length, as vLLM has it.

    Without `max_tokens` an answer may take all that its prompt leaves.

    Raises: InvalidApiRequest when a prompt leaves no room for an answer.
    """
    limits = model.limits
    if not limits.is_known:
        return sampling
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest >= limits.max_model_len:
        raise InvalidApiRequest(
            f"this model's maximum context length is {limits.max_model_len} tokens, and the prompt "
            f"has {longest}: shorten it",
            param=param,
            code="context_length_exceeded",
        )
    filled = SamplingOverrides(
        max_tokens=limits.max_model_len, min_tokens=0, max_prompt_tokens=limits.max_model_len - 1
    )
    return {**filled, **sampling}
