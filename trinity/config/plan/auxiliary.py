"""Resolves auxiliary models: their role and engine by their files, lengths, sampling."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from trinity.config.error_collector import all_of
from trinity.config.plan.lengths import SequenceLengths, resolve_auxiliary_lengths
from trinity.config.plan.model import (
    check_template_kwargs,
    external_access,
    locate_model,
    newest_snapshot,
    resolve_model_path,
)
from trinity.config.plan.parts import AuxiliaryModel, ResolvedSampling
from trinity.config.schema.experiment import Config
from trinity.config.schema.explorer import AuxiliaryModelConfig, ModelRole
from trinity.errors import UserError
from trinity.plugins import DISTILLATION_WORKFLOWS, WORKFLOWS
from trinity.runtime.json_values import JsonValue

SCORING = re.compile(
    r"For(Sequence|Token|Image)?Classification|For(Process|Sequence)?Reward|RewardModel|RewardHead"
    r"|ForScore|ForMultipleChoice|ForQuestionAnswering|ForTextEncoding"
)
"""Classes with a head of scores, by their names."""
HEADS = ("v_head.", "score.")
"""Prefixes of tensors of such heads, in models that may call themselves `*ForCausalLM`."""
POOLED = re.compile(
    r"\w+ForSequenceClassification|(InternLM2|Qwen2)ForRewardModel|Qwen2ForProcessRewardModel"
)
"""Classes that vLLM's pooling runner loads with their heads."""
MODEL_REWARD = "model_reward"
REWARDED_BY_ITSELF = frozenset(
    {
        "math_eval_workflow",
        "async_math_eval_workflow",
        "frozen_lake_workflow",
        "sudoku_workflow",
        "tool_call_workflow",
        "toolcall_workflow",
        "rubric_judge_workflow",
        "rubric_judge_openai_workflow",
    }
)
"""Workflows that never call their taskset's reward."""
_OTHERS = {
    *("math_ruler_workflow", "async_math_ruler_workflow", "math_trainable_ruler_workflow"),
    *("openenv", "verifiers"),
}
"""Further workflows with their own rewards, of a judge or of an environment."""


def model_directory(path: str) -> Path | None:
    """Returns the directory of a model as a file gives it; None if its files are not here."""
    located = locate_model(path)
    return Path(located) if Path(located).is_dir() else newest_snapshot("model", located)


def class_of(directory: Path) -> str:
    """Returns the class that a model's config.json names; empty if it cannot be read."""
    try:
        named = json.loads((directory / "config.json").read_bytes())["architectures"]
        return str(named[0])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def head_tensors(directory: Path) -> list[str]:
    """Returns the names of a head's tensors in the files of a model."""
    return [name for name in _tensor_names(directory) if name.startswith(HEADS)]


def _tensor_names(directory: Path) -> Iterator[str]:
    for file in sorted(directory.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                size = file.stat().st_size
                header = json.loads(stream.read(length)) if length <= size - 8 else {}
        except (OSError, ValueError):  # the check of the files says so
            continue
        yield from header


def role_of(model: AuxiliaryModelConfig) -> ModelRole:
    """Returns the role of a model: as configured, else as its files say if they are here."""
    if model.role is not None:
        return model.role
    directory = model_directory(model.model_path) if model.engine_type != "external" else None
    if directory is None:
        return "generate" if model.engine_type != "transformers" else "score"
    scores = SCORING.search(class_of(directory)) or head_tensors(directory)
    return "score" if scores else "generate"


def with_engine(model: AuxiliaryModelConfig) -> AuxiliaryModelConfig:
    """Returns a model that scores with the engine that runs it: vLLM does not know all heads."""
    directory = model_directory(model.model_path) if model.engine_type == "vllm" else None
    if directory is None or role_of(model) != "score" or is_pooled(directory):
        return model
    return model.model_copy(update={"engine_type": "transformers"})


def is_pooled(directory: Path) -> bool:
    """Returns True if vLLM's pooling runner loads a model with its head."""
    return POOLED.fullmatch(class_of(directory)) is not None


def asked_scorer(models: Sequence[AuxiliaryModel], asked: JsonValue) -> int:
    """Returns the place of the model that `model_reward` asks: the one with this name or place, or,
    with None, the first that scores.

    Raises: UserError if there is none.
    """
    for place, model in enumerate(models):
        if model.role == "score" if asked is None else asked in (model.name, place):
            if model.role == "score":
                return place
            raise UserError(
                f"`{MODEL_REWARD}` asks `explorer.auxiliary_models[{place}]` ({model.name}), which "
                "writes texts and has no head of scores: give a model that scores, or `role: "
                "score` if it is one and its files are elsewhere"
            )
    known = "" if asked is None else f" `{asked}`"
    raise UserError(
        f"`{MODEL_REWARD}` finds no model{known} that scores in `explorer.auxiliary_models`: give "
        "one, with `role: score` if its files are elsewhere"
    )


def usual_reward(config: Config, workflow: str | None) -> str | None:
    """Returns the reward of tasks for which a file names none: that of its model that scores."""
    own = WORKFLOWS.builtins.keys() - REWARDED_BY_ITSELF - DISTILLATION_WORKFLOWS - _OTHERS
    takes_reward = workflow is None or workflow in own
    scores = any(role_of(model) == "score" for model in config.explorer.auxiliary_models)
    return MODEL_REWARD if takes_reward and scores else None


def resolve_auxiliary_models(
    config: Config, lengths: SequenceLengths
) -> tuple[AuxiliaryModel, ...]:
    """The auxiliary models in order, with every default filled in.

    Raises: UserError with a line for each error.
    """
    configs = config.explorer.auxiliary_models
    found = all_of([partial(_resolve, config, i, lengths) for i in range(len(configs))])
    names = [model.name for model in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two of `explorer.auxiliary_models` are called `{name}`: give each its own `name`"
            )
    return tuple(found)


def _resolve(config: Config, position: int, lengths: SequenceLengths) -> AuxiliaryModel:
    auxiliary = config.explorer.auxiliary_models[position]
    at = f"explorer.auxiliary_models[{position}]"
    own = resolve_auxiliary_lengths(auxiliary, lengths, at)
    model = config.model
    external, path = None, ""
    if auxiliary.engine_type == "external":
        key = f"{at}.external_model_config"
        external = external_access(auxiliary.external_model_config, key)
        path = external.model_name
    truncates, thinks = auxiliary.enable_prompt_truncation, auxiliary.enable_thinking
    variables = auxiliary.chat_template_kwargs
    if variables is None:
        variables = {} if external is not None else model.chat_template_kwargs
    check_template_kwargs(variables, thinks, at)
    return AuxiliaryModel(
        name=auxiliary.name or f"auxiliary_models[{position}]",
        model_path=path or resolve_model_path(auxiliary.model_path, f"{at}.model_path"),
        external=external,
        max_model_len=own.model,
        max_prompt_tokens=own.prompt,
        truncates_prompts=model.enable_prompt_truncation if truncates is None else truncates,
        chat_template=auxiliary.chat_template,
        enable_thinking=model.enable_thinking if thinks is None else thinks,
        chat_template_kwargs=variables,
        sampling=_sampling(config, auxiliary, own),
        engine=with_engine(auxiliary),
        role=role_of(auxiliary),
    )


def _sampling(
    config: Config, auxiliary: AuxiliaryModelConfig, lengths: SequenceLengths
) -> ResolvedSampling:
    model = config.model
    penalty = auxiliary.repetition_penalty
    return ResolvedSampling(
        temperature=model.temperature if auxiliary.temperature is None else auxiliary.temperature,
        top_p=model.top_p if auxiliary.top_p is None else auxiliary.top_p,
        top_k=model.top_k if auxiliary.top_k is None else auxiliary.top_k,
        max_tokens=lengths.response,
        min_tokens=lengths.min_response,
        repetition_penalty=model.repetition_penalty if penalty is None else penalty,
        logprobs=model.logprobs if auxiliary.logprobs is None else auxiliary.logprobs,
    )
