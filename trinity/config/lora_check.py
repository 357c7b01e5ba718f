"""Checks the adapter that a stage trains, and finds the one it starts from."""

import json
import re
from pathlib import Path

from trinity.config.lora import LoRAConfig, Names
from trinity.config.model import ModelConfig
from trinity.config.resolve_data import absolute
from trinity.errors import UserError

KEY = "model.lora_configs"
_BEYOND = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters")
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def located_adapter(model: ModelConfig, stage: str) -> str | None:
    """Returns the absolute directory of the adapter to start from; None if it starts at zero.

    Raises: UserError if there are several adapters, or one that cannot be trained.
    """
    if len(model.lora_configs) > 1:
        raise UserError(
            f"stage `{stage}`: `{KEY}` has {len(model.lora_configs)} adapters, and one is trained "
            "at a time: leave one, or train each in a stage of its own"
        )
    lora = model.lora
    if lora is None:
        return None
    for key, names_of in (("target_modules", lora.targets), ("exclude_modules", lora.excluded)):
        _check_pattern(key, names_of, stage)
    if lora.path is None:
        return None
    directory = absolute(lora.path)
    _check_files(Path(directory), lora, stage)
    return directory


def _check_pattern(key: str, names: Names, stage: str) -> None:
    if not isinstance(names, str):
        return
    if not names.strip():
        raise UserError(f"stage `{stage}`: `{KEY}`: `{key}` is empty: name layers, or remove it")
    try:
        re.compile(names)
    except re.error as error:
        raise UserError(
            f"stage `{stage}`: `{KEY}`: `{key}: {names}` is not a regular expression ({error}): "
            "give names with commas in between, or fix it"
        ) from error


def _check_files(directory: Path, lora: LoRAConfig, stage: str) -> None:
    where = f"stage `{stage}`: `{KEY}`: `path: {directory}`"
    for name in _FILES:
        if not (directory / name).is_file():
            raise UserError(f"{where} has no {name}: give an adapter's directory in peft's layout")
    try:
        saved = json.loads((directory / _FILES[0]).read_bytes())
        found = {"lora_rank": saved["r"], "lora_alpha": saved["lora_alpha"]}
        is_plain = saved.get("peft_type") == "LORA" and not any(saved.get(key) for key in _BEYOND)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: its {_FILES[0]} is damaged: save the adapter again") from error
    if not is_plain or saved.get("bias", "none") != "none":
        raise UserError(f"{where} is more than low-rank matrices: give a plain LoRA adapter")
    for key, configured in (("lora_rank", lora.lora_rank), ("lora_alpha", lora.lora_alpha)):
        if key in lora.model_fields_set and found[key] != configured:
            raise UserError(
                f"{where} has {key} {found[key]}, not {configured}: write that number, or "
                "leave it out"
            )
