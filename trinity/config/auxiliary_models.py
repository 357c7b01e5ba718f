"""Models beside the policy: the settings they share with it, and their own."""

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
    """The auxiliary models in order, with every default filled in.

    Raises: UserError with a line for each error.
    """
    configs = config.explorer.auxiliary_models
    found = all_of([partial(_resolve, config, i, lengths, stage) for i in range(len(configs))])
    names = [model.name for model in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"stage `{stage}`: two of `explorer.auxiliary_models` are called `{name}`: "
                "give each a `name` of its own"
            )
    return tuple(found)


def _resolve(config: Config, position: int, lengths: Lengths, stage: str) -> AuxiliaryModel:
    auxiliary = config.explorer.auxiliary_models[position]
    at = f"explorer.auxiliary_models[{position}]"
    own = resolve_auxiliary_lengths(auxiliary, lengths, at, stage)
    model = config.model
    external, path = None, ""
    if auxiliary.engine_type == "external":
        key = f"{at}.external_model_config"
        external = external_access(auxiliary.external_model_config, key, stage)
        path = external.model_name
    truncates, thinks = auxiliary.enable_prompt_truncation, auxiliary.enable_thinking
    return AuxiliaryModel(
        name=auxiliary.name or f"auxiliary_models[{position}]",
        model_path=path or located_auxiliary(auxiliary.model_path, at, stage),
        external=external,
        max_model_len=own.model,
        max_prompt_tokens=own.prompt,
        truncates_prompts=model.enable_prompt_truncation if truncates is None else truncates,
        chat_template=auxiliary.chat_template,
        enable_thinking=model.enable_thinking if thinks is None else thinks,
        sampling=_sampling(config, auxiliary, own),
        engine=auxiliary,
    )


def _sampling(config: Config, auxiliary: AuxiliaryModelConfig, lengths: Lengths) -> Sampling:
    model = config.model
    penalty = auxiliary.repetition_penalty
    return Sampling(
        temperature=model.temperature if auxiliary.temperature is None else auxiliary.temperature,
        top_p=model.top_p if auxiliary.top_p is None else auxiliary.top_p,
        top_k=model.top_k if auxiliary.top_k is None else auxiliary.top_k,
        max_tokens=lengths.response,
        min_tokens=lengths.min_response,
        repetition_penalty=model.repetition_penalty if penalty is None else penalty,
        logprobs=model.logprobs if auxiliary.logprobs is None else auxiliary.logprobs,
    )
