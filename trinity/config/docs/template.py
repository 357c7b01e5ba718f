"""A new configuration as text: the keys that a first run needs, each with its description."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity.config.docs.catalog import field_doc
from trinity.config.loading.keys import parse_key
from trinity.config.loading.source import section_at
from trinity.config.loading.yaml import scalar
from trinity.config.schema.experiment import Config

SCHEMA_LINE = "# yaml-language-server: $schema=trinity.schema.json"
IS_MATHS = "math_workflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Options of a first configuration."""

    name: str
    model: str
    taskset: str
    algorithm: str = "grpo"
    workflow: str = IS_MATHS
    reward: str | None = None
    prompt_key: str = "question"
    response_key: str = "answer"
    eval_split: str | None = None
    gpus: int = 0
    reward_fn_key: str = ""
    max_prompt_tokens: int = 1024
    max_response_tokens: int = 1024
    batch_size: int = 32


def draft_config(options: DraftOptions) -> str:
    """The file's text; it loads unchanged if the model and the tasks exist at the given paths."""
    head = [
        SCHEMA_LINE,
        "# `trinity config explain KEY` explains a key, `trinity config check` checks the file,",
        "# `trinity run --dry-run` also checks that the model and the data exist.",
    ]
    return "\n".join([*head, *_lines(_tree(options), "", "")]) + "\n"


def _tree(options: DraftOptions) -> dict[str, Any]:
    columns = {"prompt_key": options.prompt_key, "response_key": options.response_key}
    if options.reward_fn_key:
        columns["reward_fn_key"] = options.reward_fn_key
    tasks: dict[str, Any] = {"default_workflow_type": options.workflow}
    if options.reward:
        tasks["default_reward_fn_type"] = options.reward
    tasks["taskset"] = {"name": "train", "path": options.taskset, "split": "train"}
    tasks["taskset"] |= {"format": columns, "data_selector": {"selector_type": "shuffle"}}
    if options.eval_split:
        held_out: dict[str, Any] = {
            "name": "held_out",
            "path": options.taskset,
            "split": options.eval_split,
        }
        held_out |= {"format": columns, "rollout_args": {"temperature": 0.0}}
        tasks["eval_tasksets"] = [held_out]
    tree: dict[str, Any] = {
        "project": "trinity",
        "name": options.name,
        "checkpoint_root_dir": "./checkpoints",
        "mode": "both",
        "seed": 42,
        "model": {
            "model_path": options.model,
            "max_prompt_tokens": options.max_prompt_tokens,
            "max_response_tokens": options.max_response_tokens,
        },
        "algorithm": {
            "algorithm_type": options.algorithm,
            "repeat_times": 8,
            "optimizer": {"lr": 1e-6, "lr_warmup_steps": 10},
        },
        "cluster": {"gpu_per_node": options.gpus},
        "buffer": {"batch_size": options.batch_size, "total_epochs": 1, "explorer_input": tasks},
        "explorer": {"runner_per_model": 32, "eval_interval": 20},
        "trainer": {"save_interval": 50, "max_checkpoints_to_keep": 2},
        "synchronizer": {"sync_interval": 1, "sync_offset": 0},
    }
    return tree


def _lines(tree: dict[str, Any], key: str, indent: str) -> Iterator[str]:
    for name, value in tree.items():
        inner = f"{key}.{name}" if key else name
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _lines(value, inner, f"{indent}  ")
        elif isinstance(value, list):
            yield f"{indent}{name}:"
            for position, item in enumerate(value):
                yield from _item(item, f"{inner}[{position}]", f"{indent}  ")
        else:
            yield f"{indent}{name}: {scalar(value)}  # {_meaning(inner)}"


def _item(item: dict[str, Any], key: str, indent: str) -> Iterator[str]:
    for position, line in enumerate(_lines(item, key, f"{indent}  ")):
        yield f"{indent}- {line[len(indent) + 2 :]}" if position == 0 else line


def _meaning(key: str) -> str:
    """First sentence of the key's description."""
    location = parse_key(key)
    section = section_at(location[:-1], Config)
    assert section is not None
    return re.split(r"(?<!\.)\. ", field_doc(section, str(location[-1])))[0].removesuffix(".")
