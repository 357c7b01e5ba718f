"""Small configurations, models and data files for the tests of `trinity.config`."""

import json
from collections.abc import Mapping
from pathlib import Path

from trinity.config.loading.load import load_config
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config, deep_merge

_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
SAFETENSORS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)
"""One weight, as small as a whole file can be."""

GRPO: dict[str, object] = {
    "project": "demo",
    "name": "sums",
    "model": {"model_path": "/models/tiny", "max_model_len": 24},
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
    "buffer": {
        "batch_size": 4,
        "total_steps": 10,
        "explorer_input": {
            "default_workflow_type": "simple_workflow",
            "taskset": {"name": "train", "path": "/data/train.jsonl"},
        },
    },
}
SFT: dict[str, object] = {
    "project": "demo",
    "name": "warm",
    "mode": "train",
    "model": {"model_path": "/models/tiny", "max_model_len": 24},
    "algorithm": {"algorithm_type": "sft"},
    "buffer": {
        "train_batch_size": 16,
        "total_steps": 5,
        "trainer_input": {"experience_buffer": {"storage_type": "file", "path": "/data/sft.jsonl"}},
    },
}


DPO: dict[str, object] = {**SFT, "algorithm": {"algorithm_type": "dpo"}}
CPT: dict[str, object] = {**SFT, "algorithm": {"algorithm_type": "cpt"}}
IMITATION: Mapping[str, object] = {
    "stage_name": "sft",
    "mode": "train",
    "algorithm": {"algorithm_type": "sft"},
    "buffer": {
        "train_batch_size": 16,
        "trainer_input": {"experience_buffer": {"storage_type": "file", "path": "/data/sft.jsonl"}},
    },
}
REINFORCEMENT: Mapping[str, object] = {"stage_name": "rft", "mode": "both"}
"""As the first of two `stages` over GRPO, and the second."""


def config(base: Mapping[str, object] = GRPO, /, **changes: object) -> Config:
    """`base` with `changes` laid deeply over it."""
    return Config.model_validate(deep_merge(base, changes))


def stage(base: Mapping[str, object] = GRPO, /, **changes: object) -> StagePlan:
    """The plan of the single stage of `config(...)`."""
    return plan_experiment(config(base, **changes)).stages[0]


def load(directory: Path, text: str) -> Config:
    """What `load_config` makes of a file with this text."""
    file = directory / "x.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def write_rows(file: Path, *rows: object) -> str:
    """A jsonl file; answers its path."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }}]{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_model(directory: Path, **architecture: object) -> str:
    """A directory that looks like a model; answers its path."""
    directory.mkdir(parents=True)
    config = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
    described = {"model_type": "qwen2", **config, **architecture}
    (directory / "config.json").write_text(json.dumps(described))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    (directory / "model.safetensors").write_bytes(SAFETENSORS)
    return str(directory)
