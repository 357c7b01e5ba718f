"""Models beside the policy: what they take over from it, and what is their own."""

from functools import partial

from trinity.config.external import external_access
from trinity.config.gathered import all_of
from trinity.config.lengths import Lengths, resolve_auxiliary_lengths
from trinity.config.model_files import located_auxiliary
from trinity.config.plan_parts import AuxiliaryModel, Sampling
from trinity.config.rollout_model import AuxiliaryModelConfig
from trinity.config.root import Config
from trinity.errors import UserError


def resolve_auxiliary_models(
    config: Config, lengths: Lengths, stage: str
) -> tuple[AuxiliaryModel, ...]:
    """In their order, with every default filled in.

    Raises: UserError with a line for each mistake.
    """
    given = config.explorer.auxiliary_models
    found = all_of([partial(_resolve, config, i, lengths, stage) for i in range(len(given))])
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"stage `{stage}`: two of `explorer.auxiliary_models` are called `{name}`: "
                "give each a `name` of its own"
            )
    return tuple(found)


def _resolve(config: Config, position: int, lengths: Lengths, stage: str) -> AuxiliaryModel:
    given = config.explorer.auxiliary_models[position]
    at = f"explorer.auxiliary_models[{position}]"
    own = resolve_auxiliary_lengths(given, lengths, at, stage)
    model = config.model
    external, path = None, ""
    if given.engine_type == "external":
        key = f"{at}.external_model_config"
        external = external_access(given.external_model_config, key, stage)
        path = external.model_name
    truncates, thinks = given.enable_prompt_truncation, given.enable_thinking
    return AuxiliaryModel(
        name=given.name or f"auxiliary_models[{position}]",
        model_path=path or located_auxiliary(given.model_path, at, stage),
        external=external,
        max_model_len=own.model,
        max_prompt_tokens=own.prompt,
        truncates_prompts=model.enable_prompt_truncation if truncates is None else truncates,
        chat_template=given.chat_template,
        enable_thinking=model.enable_thinking if thinks is None else thinks,
        sampling=_sampling(config, given, own),
        engine=given,
    )


def _sampling(config: Config, given: AuxiliaryModelConfig, lengths: Lengths) -> Sampling:
    model = config.model
    penalty = given.repetition_penalty
    return Sampling(
        temperature=model.temperature if given.temperature is None else given.temperature,
        top_p=model.top_p if given.top_p is None else given.top_p,
        top_k=model.top_k if given.top_k is None else given.top_k,
        max_tokens=lengths.response,
        min_tokens=lengths.min_response,
        repetition_penalty=model.repetition_penalty if penalty is None else penalty,
        logprobs=model.logprobs if given.logprobs is None else given.logprobs,
    )
