"""Converts data files to tasksets, with their lengths and sampling."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import glob, has_magic
from pathlib import Path, PurePosixPath

from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue
from trinity.verl.work import Conversion
from trinity.verl.written_rows import CLASS, MAX_SAMPLES, SAMPLER

INPUT = "buffer.explorer_input"
VAL = "actor_rollout_ref.rollout.val_kwargs"
_SPLITS = {"train", "test", "val", "valid", "validation", "dev"}
_SPLIT = re.compile(r"(?P<path>[\w.-]+/[\w.-]+)@(?P<split>\w+)")
"""A dataset of the hub with its split, as EasyR1 has them."""
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_SAMPLING = ("temperature", "top_p", "top_k", "n")
OLDER_SAMPLING = {
    "n": "actor_rollout_ref.rollout.n_val",
    "temperature": "actor_rollout_ref.rollout.val_temperature",
    "top_p": "actor_rollout_ref.rollout.val_top_p",
}
"""Names that projects gave to options of evaluations before veRL had `val_kwargs`."""
_FORMAT_KEYS = ("image_key", "video_key")
DEFAULT_WORKFLOW = "simple_workflow"
"""It sends a row's messages as they are, as veRL does."""
TRUTH = "reward_model.ground_truth"
"""Where veRL's rows hold the truth."""


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Location of a taskset's rows."""

    path: str
    name: str
    split: str = ""


def convert_data(work: Conversion) -> None:
    """Converts section `buffer.explorer_input`."""
    work.put(
        f"{INPUT}.default_workflow_type",
        DEFAULT_WORKFLOW,
        "the row's messages as they are, and one answer",
    )
    _take_written_rows(work)
    train = _places(work, "data.train_files", "~/data/rlhf/gsm8k/train.parquet")
    if not train:
        work.report.advice.append(f"`data.train_files` is empty: give `{INPUT}.taskset.path`")
    keys = _keys(train, f"{INPUT}.taskset")
    for key, (place, source) in zip(keys, train, strict=True):
        _put_location(work, key, place, source)
        _put_format(work, key)
        _put_order(work, key)
    evaluations = _places(work, "data.val_files", "~/data/rlhf/gsm8k/test.parquet")
    for position, (place, source) in enumerate(evaluations):
        key = f"{INPUT}.eval_tasksets[{position}]"
        named = replace(place, name=f"{place.name}_eval")
        _put_location(work, key, named, source)
        _put_format(work, key)
        _put_sampling(work, key)
    if not evaluations:
        names = [f"{VAL}.{name}" for name in ("do_sample", *_SAMPLING)]
        for name in (*names, *OLDER_SAMPLING.values()):
            work.report_not_needed(name, "there is no evaluation")
    _finish(work)


def _take_written_rows(work: Conversion) -> None:
    """Puts files that a class of rows has written in the place of those that it reads."""
    rows = work.choices.rows
    if rows is None:
        return
    for split, key in (("train", "data.train_files"), ("val", "data.val_files")):
        if split in rows.files:
            origin = f"{rows.counts[split]} rows, written for {key}"
            path = str(rows.files[split])
            work.settings.put(VerlSetting(key=key, value=path, where=origin))
    for setting in work.settings.all():
        if setting.key.startswith((f"{CLASS}.", f"{SAMPLER}.")) or setting.key in MAX_SAMPLES:
            work.report_not_needed(setting.key, "its rows are written")
    if rows.is_ordered:
        where = f"the order of `{SAMPLER}`"
        work.settings.put(VerlSetting(key="data.shuffle", value=False, where=where))
    if rows.told_after_batches:
        work.report.advice.append(
            f"`{SAMPLER}`: its order of one epoch is written, and its `update` is not called: "
            "`data_selector.selector_type: difficulty_based` chooses by what rollouts came to"
        )


def convert_fork_names(work: Conversion) -> None:
    """Reads keys that forks of veRL have renamed under veRL's own names."""
    for name, verl in (
        ("actor_rollout_ref.rollout.n_agent", "actor_rollout_ref.rollout.n"),
        ("data.n_samples", "actor_rollout_ref.rollout.n"),
        ("data.shuffle_train_dataloader", "data.shuffle"),
    ):
        setting = work.settings.peek(name)
        if setting is None:
            continue
        work.report_not_needed(name, f"a fork's name of `{verl}`")
        if work.settings.peek(verl) in (None, 1):
            work.settings.put(VerlSetting(key=verl, value=setting, where=name))


def convert_lengths(work: Conversion) -> None:
    """Converts the model and the lengths of its sequences."""
    work.copy("actor_rollout_ref.model.path", "model.model_path", "~/models/deepseek-llm-7b-chat")
    work.copy("data.max_prompt_length", "model.max_prompt_tokens", 512)
    work.copy("data.max_response_length", "model.max_response_tokens", 512)


def _keys(train: list[tuple[RowLocation, VerlSetting | str]], single: str) -> list[str]:
    if len(train) == 1:
        return [single]
    return [f"{single}s[{position}]" for position in range(len(train))]


def _places(
    work: Conversion, key: str, default: str
) -> list[tuple[RowLocation, VerlSetting | str]]:
    setting = work.settings.take(key)
    value: JsonValue = default if setting is None else setting.value
    source: VerlSetting | str = setting or f"veRL's default of {key}"
    paths: list[JsonValue] = value if isinstance(value, list) else [value]
    places = [parse_row_location(path) for path in file_names(paths)]
    return [(place, source) for place in _with_own_names(places)]


def file_names(values: list[JsonValue]) -> list[str]:
    """The files of a list, in order; a pattern is the files that match it, if there are any."""
    names: list[str] = []
    for value in values:
        found = sorted(glob(str(Path(str(value)).expanduser()))) if value else []
        is_pattern = bool(found) and has_magic(str(value)) and not Path(str(value)).exists()
        names += found if is_pattern else [str(value)] if value else []
    return names


def parse_row_location(path: str) -> RowLocation:
    """The file itself, which `data/gsm8k/train.parquet` names `gsm8k`."""
    found = _SPLIT.fullmatch(path)
    path = found["path"] if found else path
    file = PurePosixPath(path)
    name = file.stem if file.suffix else file.name
    if file.suffix and file.stem in _SPLITS and str(file.parent) not in (".", "/"):
        name = file.parent.name
    return RowLocation(path, _clean(name), found["split"] if found else "")


def _clean(name: str) -> str:
    return _NAME.sub("-", name).strip("-._") or "tasks"


def _with_own_names(places: list[RowLocation]) -> Iterator[RowLocation]:
    for position, place in enumerate(places):
        is_taken = place.name in [other.name for other in places[:position]]
        name = f"{place.name}_{position}" if is_taken else place.name
        yield replace(place, name=name)


def _put_location(
    work: Conversion, key: str, place: RowLocation, source: VerlSetting | str
) -> None:
    work.draft.put(f"{key}.name", place.name)
    work.draft.put(f"{key}.storage_type", "file")
    work.put(f"{key}.path", place.path, source)
    if place.split:
        work.put(f"{key}.split", place.split, source)


def _put_format(work: Conversion, key: str) -> None:
    _put_column(work, key, "prompt_key", "prompt", "veRL's default of data.prompt_key")
    _put_column(work, key, "response_key", TRUTH, "the ground truth in veRL rows")
    for name in _FORMAT_KEYS:
        if (setting := work.settings.take(f"data.{name}")) is not None:
            work.put(f"{key}.format.{name}", setting.value, setting)


def _put_order(work: Conversion, key: str) -> None:
    shuffle = work.settings.take("data.shuffle")
    is_shuffled = shuffle is None or shuffle.value is not False
    work.put(
        f"{key}.data_selector.selector_type",
        "shuffle" if is_shuffled else "sequential",
        shuffle or "veRL's default of data.shuffle",
    )
    seed = work.settings.take("data.seed")
    if seed is not None and seed.value is not None:
        work.put(f"{key}.data_selector.seed", seed.value, seed)


def _put_column(work: Conversion, key: str, name: str, default: str, remark: str) -> None:
    setting = work.settings.take(f"data.{name}")
    value = setting.value if setting else default
    work.put(f"{key}.format.{name}", value, setting or remark)


def _put_sampling(work: Conversion, key: str) -> None:
    """Converts sampling in evaluations; `val_kwargs.temperature` is 0 by default."""
    settings = work.settings
    if (n := _of_evaluation(work, "n")) is not None and n.value is not None:
        work.put(f"{key}.repeat_times", n.value, n)
    work.report_not_needed(
        f"{VAL}.do_sample", "veRL's loops take the temperature of `val_kwargs`, 0 is greedy"
    )
    temperature = _of_evaluation(work, "temperature")
    origin = temperature or f"veRL's default of {VAL}.temperature"
    value = 0.0 if temperature is None or temperature.value is None else temperature.value
    work.put(f"{key}.rollout_args.temperature", value, origin)
    for name, default in (("top_p", 1.0), ("top_k", -1)):
        if (setting := _of_evaluation(work, name)) is not None:
            work.put(f"{key}.rollout_args.{name}", setting.value, setting)
        elif settings.peek(f"actor_rollout_ref.rollout.{name}") is not None and value != 0:
            work.put(f"{key}.rollout_args.{name}", default, f"veRL's default of {VAL}.{name}")


def _of_evaluation(work: Conversion, name: str) -> VerlSetting | None:
    """Takes a sampling option of evaluations, by veRL's name or by that of projects on it."""
    setting = work.settings.take(f"{VAL}.{name}")
    older = OLDER_SAMPLING.get(name)
    other = work.settings.take(older) if older else None
    if setting is not None and other is not None:
        work.report.not_needed.append((other, f"`{VAL}.{name}` decides"))
    return setting or other


def _put_truncation(work: Conversion, cut: VerlSetting) -> None:
    """Converts what becomes of prompts that are too long, unless they are filtered out."""
    filtered = work.settings.peek("data.filter_overlong_prompts")
    if filtered is True or cut.value == "error":
        why = "prompts that are too long are not trained on"
        work.report.not_needed.append((cut, why))
    else:
        work.report.advice.append(
            f"data.truncation={cut.value} ({cut.where}): veRL cuts prompts that are too long and "
            "trains on them, here they become masked experiences without reward: raise "
            "`model.max_prompt_tokens`, or cut them in the file"
        )
    if filtered is None:
        work.put("model.enable_prompt_truncation", cut.value != "error", cut)


def _finish(work: Conversion) -> None:
    """Converts the remaining keys of data."""
    if (cut := work.settings.take("data.truncation")) is not None:
        _put_truncation(work, cut)
