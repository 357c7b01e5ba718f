"""Converts the back end: FSDP2 trains in the place of Megatron, VeOmni and TorchTitan."""

import re
from collections.abc import Iterator

from trinity.config.loading.back_end_keys import SHARED_SEQUENCES, SIZES
from trinity.verl.settings import VerlSetting
from trinity.verl.table.back_ends import BACK_ENDS
from trinity.verl.values import JsonValue
from trinity.verl.work import ACTOR, Conversion

FSDP = ("dp", "fsdp", "fsdp2")
ULYSSES = "trainer.ulysses_sequence_parallel_size"
_CHOOSING = (
    "model_engine",
    "actor@actor_rollout_ref.actor",
    f"{ACTOR}.strategy",
    f"{ACTOR}.model_engine",
    f"{ACTOR}.fsdp_config.strategy",
    "engine",
    "engine.strategy",
    "engine.distributed_strategy",
    "model.strategy",
)
_NAMES = {
    "megatron": "Megatron",
    "veomni": "VeOmni",
    "torchtitan": "TorchTitan",
    "automodel": "AutoModel",
    "mlite": "Megatron Lite",
}
_OTHER = re.compile("|".join(_NAMES))
_SECTION = re.compile(
    rf"(?:{re.escape(ACTOR)}\.(?:{'|'.join(BACK_ENDS)})|engine)\.(?P<name>[a-z_]+)"
)
_PADDED = re.compile(
    rf"(?:{re.escape(ACTOR)}\.(?:(?:{'|'.join(BACK_ENDS)})\.)?|actor_rollout_ref\.model\."
    r"|engine\.|model\.|)use_remove_padding"
)
_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
    "float32": "float32",
}
_PASS_DTYPES = (
    *(f"{ACTOR}.{name}.dtype" for name in ("fsdp_config", *BACK_ENDS)),
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype",
    "engine.dtype",
    "engine.mixed_precision.param_dtype",
)
_EXACT_DTYPES = {
    f"{ACTOR}.fsdp_config.model_dtype": "keeps its weights",
    f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "sums up gradients",
    "engine.model_dtype": "keeps its weights",
    "engine.mixed_precision.reduce_dtype": "sums up gradients",
}
"""Keys of number types that are always float32 here, with what the trainer does in it."""
_SHARDED = "FSDP2 shards over all ranks in its place"


def convert_back_end(work: Conversion) -> None:
    """Converts the choice of the back end, its parallel sizes and its number types."""
    names = [name for key in _CHOOSING if (name := _put_choice(work, key))]
    configured = _OTHER.search(str(work.settings.peek("hydra.config_name") or ""))
    if configured:
        work.draft.put("trainer.trainer_strategy", "fsdp2")
        names.append(configured[0])
    sizes = [text for setting in _settings_of_sections(work) for text in _take_size(work, setting)]
    if names or sizes:
        _warn(work, names, sizes)
    _leave_out_padding(work)
    _leave_out_drafts(work)
    _put_types(work)


def sequence_parallel_size(work: Conversion) -> int:
    """Returns the number of GPUs that share a sequence, converted already or not."""
    sections = (f"{ACTOR}.", f"{ACTOR}.fsdp_config.", "", "engine.")  # the last two: supervised
    own = (f"{section}ulysses_sequence_parallel_size" for section in sections)
    sizes = (work.draft.get(ULYSSES), *(work.settings.peek(name) for name in own))
    return next((size for size in sizes if isinstance(size, int) and size > 1), 1)


def _put_choice(work: Conversion, key: str) -> str:
    """Takes a key that chooses the back end; returns the name of one other than FSDP."""
    setting = work.settings.take(key)
    if setting is None:
        return ""
    value = str(setting.value)
    if value in FSDP or value.startswith("fsdp"):
        if key.endswith("strategy") and key.startswith(ACTOR):
            work.put("trainer.trainer_strategy", "fsdp2", setting)
        else:
            work.report.not_needed.append((setting, "FSDP2 trains, which is the default"))
        return ""
    work.put("trainer.trainer_strategy", "fsdp2", setting, f"in the place of {value}")
    return value


def _settings_of_sections(work: Conversion) -> Iterator[tuple[VerlSetting, str]]:
    """Settings of another back end's section, each with the last part of its key."""
    for setting in work.settings.all():
        if found := _SECTION.fullmatch(setting.key):
            yield setting, found["name"]


def _take_size(work: Conversion, found: tuple[VerlSetting, str]) -> Iterator[str]:
    """Takes a parallel size; yields it as text for the warning if it is above 1."""
    setting, name = found
    if name not in SIZES and name not in SHARED_SEQUENCES:
        return
    work.settings.take(setting.key)
    is_above_one = isinstance(setting.value, int) and setting.value > 1
    if name in SHARED_SEQUENCES and is_above_one:
        work.put(ULYSSES, setting.value, setting, "GPUs that share a sequence")
        return
    work.report.left_out.append((setting, _SHARDED))
    if is_above_one:
        yield f"{name}={setting.value}"


def _leave_out_padding(work: Conversion) -> None:
    """Leaves out that rows keep their padding where ranks share sequences, which have none."""
    if sequence_parallel_size(work) == 1:
        return
    for setting in work.settings.all():
        if setting.value is False and _PADDED.fullmatch(setting.key):
            work.report_left_out(setting.key, "ranks share rows that have no padding")


def _leave_out_drafts(work: Conversion) -> None:
    """Leaves out layers that predict further tokens where veRL does not train them.

    They make rollout faster: what it draws has the same distribution.
    """
    section = "model.mtp" if work.settings.is_supervised else "actor_rollout_ref.model.mtp"
    if work.settings.peek(f"{section}.enable_train") not in (None, False):
        return
    for setting in work.settings.all():
        if setting.key.startswith(f"{section}."):
            work.report_left_out(setting.key, "without `enable_train` these layers are not trained")


def _warn(work: Conversion, names: list[str], sizes: list[str]) -> None:
    found = next((match[0] for name in names if (match := _OTHER.search(name))), "")
    name = _NAMES.get(found, names[0] if names else "another back end")
    left = f", without {', '.join(sizes)}" if sizes else ""
    work.report.advice.append(
        f"veRL trains this with {name}, here FSDP2 does: it shards weights, gradients and "
        f"optimizer over all ranks and gathers one layer at a time{left}. Steps mean the same, "
        "memory and time differ: `trinity config plan` says what a GPU must hold, and "
        f"`trainer.param_offload`, `trainer.optimizer_offload` and `{ULYSSES}` make it less"
    )


def _put_types(work: Conversion) -> None:
    """Converts the type of the passes; weights and sums of gradients are in float32."""
    for key in _PASS_DTYPES:
        setting = work.settings.take(key)
        if setting is None or setting.value is None:
            continue
        dtype = _DTYPES.get(_plain(setting.value))
        if dtype is None:
            answer = "the passes compute in bfloat16 or float32: `trainer.dtype`"
            work.report.missing.append((setting, answer))
        else:
            work.put("trainer.dtype", dtype, setting)
    for key, doing in _EXACT_DTYPES.items():
        setting = work.settings.take(key)
        if setting is None or setting.value is None:
            continue
        if _DTYPES.get(_plain(setting.value)) == "float32":
            work.report.not_needed.append((setting, "that is so here in any case"))
        else:
            work.report.advice.append(
                f"{key}={setting.value} ({setting.where}): the trainer {doing} in float32, which "
                "is more exact and takes more memory; passes compute in `trainer.dtype`"
            )


def _plain(value: JsonValue) -> str:
    return str(value).removeprefix("torch.").lower()
