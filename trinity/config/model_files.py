"""Finds models: a directory, or a name on the hub that may be in the local cache."""

import os
import re
from pathlib import Path

from trinity.config.hub_names import HubName, newest_snapshot, refuse_offline
from trinity.config.model import ModelConfig
from trinity.errors import UserError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def located_model(model: ModelConfig, stage: str) -> str:
    """Absolute directory of the model; a name such as `Qwen/Qwen2.5-0.5B` stays unchanged."""
    path = model.model_path
    if not path:
        raise UserError(
            f"stage `{stage}`: `model.model_path` is missing: "
            "give the directory of a model in Hugging Face's layout"
        )
    return _located(path)


def located_if_given(model: ModelConfig) -> str:
    """The same, but empty if there is none: for a policy that another model replaces."""
    return _located(model.model_path) if model.model_path else ""


def located_auxiliary(path: str, at: str, stage: str) -> str:
    """The same for a model beside the policy."""
    if not path:
        raise UserError(
            f"stage `{stage}`: `{at}.model_path` is missing: "
            "give the directory of a model in Hugging Face's layout"
        )
    return _located(path)


def located_critic(model: ModelConfig, stage: str) -> str:
    """The same for the model that the critic starts from: the policy's unless it has its own."""
    path = model.critic_model_path
    return _located(path) if path else located_model(model, stage)


def _located(path: str) -> str:
    directory = Path(path).expanduser()
    is_hub_name = _HUB_NAME.fullmatch(path) and not Path(path).parent.exists()
    return path if is_hub_name and not directory.exists() else str(directory.absolute())


def chat_template_of(model: ModelConfig, stage: str) -> str | None:
    """The text of the user's chat template, None for the tokenizer's own."""
    if model.chat_template_path is None:
        return model.custom_chat_template
    if model.custom_chat_template is not None:
        raise UserError(
            f"stage `{stage}`: `model.custom_chat_template` and `model.chat_template_path` "
            "are both given: remove one"
        )
    try:
        return Path(model.chat_template_path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(
            f"stage `{stage}`: `model.chat_template_path: {model.chat_template_path}` "
            f"cannot be read ({why}): give a text file, from {Path.cwd()} on or by its whole path"
        ) from error


def local_model_directory(model_path: str, key: str = "model.model_path") -> Path | None:
    """The directory of a planned `model_path`; None for a model that is still on the hub."""
    if os.path.isabs(model_path):
        if not Path(model_path).is_dir():
            raise UserError(
                f"there is no model directory {model_path}: create it or correct `{key}`"
            )
        return Path(model_path)
    refuse_offline(HubName("model", model_path, f"`{key}: {model_path}`"))
    return newest_snapshot("model", model_path)
