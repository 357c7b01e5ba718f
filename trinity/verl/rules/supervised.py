"""Converts veRL's supervised fine-tuning to `mode: train`."""

from trinity.verl.rules.data import parse_row_location
from trinity.verl.rules.ranks import VerlMachines, limit_supervised_ranks
from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue, as_count, as_list
from trinity.verl.work import Conversion

BUFFER = "buffer.trainer_input.experience_buffer"
_ON_GPUS = 8
_BATCH = 256
"""veRL's default of rows in a step."""


def convert_supervised(work: Conversion) -> None:
    """Converts related keys of fine-tuning, and those for which veRL has a default."""
    work.put("mode", "train", f"{work.settings.module or 'model.*'} trains on files")
    work.put("algorithm.algorithm_type", "sft", work.settings.module or "supervised fine-tuning")
    _put_rows(work)
    _put_machines(work)
    _put_total_steps(work)
    _put_save_interval(work)
    _put_model(work)


def _put_rows(work: Conversion) -> None:
    setting = work.settings.take("data.train_files")
    value: JsonValue = "~/data/gsm8k/train.parquet" if setting is None else setting.value
    paths = value if isinstance(value, list) else [value]
    place = parse_row_location(str(paths[0]) if paths else "")
    work.put(f"{BUFFER}.storage_type", "file", "rows of files")
    work.put(f"{BUFFER}.path", place.path, setting or "veRL's default of data.train_files")
    work.put(f"{BUFFER}.split", place.split, "of the file's name")
    if len(paths) > 1 and setting is not None:
        work.report.missing.append((setting, "the first is taken: put the files in one directory"))
    _put_format(work)
    work.copy("data.train_batch_size", "buffer.train_batch_size", _BATCH, "rows of one train step")


def _put_format(work: Conversion) -> None:
    messages = work.settings.take("data.messages_key") or work.settings.take(
        "data.multiturn.messages_key"
    )
    prompt = work.settings.take("data.prompt_key")
    response = work.settings.take("data.response_key")
    work.settings.take("data.multiturn.enable")
    if prompt is not None and response is not None and messages is None:
        work.put(f"{BUFFER}.format.prompt_type", "plaintext", prompt)
        _put_text_column(work, "prompt", prompt)
        _put_text_column(work, "response", response)
        return
    work.put(f"{BUFFER}.format.prompt_type", "messages", "veRL's rows are messages")
    work.put(
        f"{BUFFER}.format.enable_concatenated_multi_turn",
        True,
        "veRL trains all turns of the assistant",
    )
    source = messages or "veRL's default of data.messages_key"
    work.put(f"{BUFFER}.format.messages_key", messages.value if messages else "messages", source)
    why = "`data.messages_key` holds prompt and answer"
    work.report_not_needed("data.prompt_key", why)
    work.report_not_needed("data.response_key", why)


def _put_text_column(work: Conversion, name: str, setting: VerlSetting) -> None:
    """Converts a column of text, or one within a column as `extra_info.question`."""
    inner = work.settings.take(f"data.{name}_dict_keys")
    keys = as_list(inner.value) if inner is not None else []
    below = keys if isinstance(keys, list) else [keys]
    path = [str(setting.value), *(str(key) for key in below)]
    work.put(f"{BUFFER}.format.{name}_key", ".".join(path[:2]), setting)
    if inner is not None and len(path) > 2:
        work.report.missing.append((inner, "one column is read, the first"))


def _put_save_interval(work: Conversion) -> None:
    setting = work.settings.take("trainer.save_freq")
    if setting is None or not isinstance(setting.value, int) or setting.value <= 0:
        work.put("trainer.save_interval", 0, work.origin("trainer.save_freq", -1), "at the end")
    else:
        work.put("trainer.save_interval", setting.value, setting)


def _put_machines(work: Conversion) -> None:
    """Converts the machines, from torchrun's options or the trainer's section."""
    counts = []
    for ours, keys, default in (
        ("cluster.node_num", ("torchrun.nnodes", "trainer.nnodes"), 1),
        ("cluster.gpu_per_node", ("torchrun.nproc_per_node", "trainer.n_gpus_per_node"), _ON_GPUS),
    ):
        present = [key for key in keys if work.settings.has(key)]
        count, key = default, keys[0]
        if present:
            key = present[0]
            count = work.number(key, default, ours)
        work.put(ours, count, work.origin(key, count))
        counts.append(count)
        for other in present[1:]:
            work.report_not_needed(other, f"`{key}` decides")
    machines = VerlMachines(*counts)
    rows = as_count(work.settings.peek("data.train_batch_size"), _BATCH)
    ranks = limit_supervised_ranks(work, machines, rows)
    if 0 < machines.filled_by(ranks) < machines.nodes:
        work.report.advice.append(
            f"{machines.total - ranks} of {machines.total} GPUs are idle, as a step has {rows} "
            f"rows: set `cluster.node_num: {machines.filled_by(ranks)}`"
        )


def _put_total_steps(work: Conversion) -> None:
    key = "trainer.total_training_steps"
    steps = work.settings.take(key)
    if steps is None or steps.value is None or steps.value == -1:
        work.copy("trainer.total_epochs", "buffer.total_epochs", 4)
    else:
        work.put("trainer.total_steps", steps.value, steps)
        work.report_not_needed("trainer.total_epochs", f"`{key}` decides")


def _put_model(work: Conversion) -> None:
    old = work.settings.take("model.partial_pretrain")
    if old is not None:
        work.put("model.model_path", old.value, old)
    else:
        work.copy("model.path", "model.model_path", "~/models/gemma-1.1-7b-it")
    work.copy("data.max_length", "model.max_model_len", 1024)
