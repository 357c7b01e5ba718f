"""The addition example's problems as tokens, and the plan that a trial trains by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.algorithms.trials import Settings, Trial
from examples.addition.prepare import prepare
from services.trainer.data.encoders import Formatter, load_formatter
from services.trainer.types import TrainRow
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.experiment import Config

IntArray = npt.NDArray[np.int64]
Row = Mapping[str, str]
Unit = Sequence[TrainRow]
"""One row, or the two of a pair."""

SEED = 42
"""The example's: of the split, of the model, of the demonstrations' order."""
MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 26, 6
COLUMNS = {"prompt_key": "question", "response_key": "answer"}
TRAINER: Settings = {"dtype": "float32", "rank_num": 1, "max_token_len_per_gpu": 8192}
WORKFLOW = "benchmarks.algorithms.rollout.Sampler"
"""Who makes rollouts here: this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedProblems:
    """Prompts, all of one length, with their right answers."""

    texts: Sequence[Row]
    rows: Sequence[TrainRow]
    """Prompt and right answer."""
    prompts_NP: IntArray
    answers: Sequence[tuple[int, ...]]
    """Tokens, the end among them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialJob:
    """Everything that trials share, under one directory."""

    work: Path
    train: EncodedProblems
    held_out: EncodedProblems

    @classmethod
    def prepared(cls, work: Path) -> "TrialJob":
        """Make the example's model and data where they are not there yet."""
        prepare(work / "made", seed=SEED)
        return cls(
            work=work,
            train=_problems(work / "made", "train"),
            held_out=_problems(work / "made", "test"),
        )

    @property
    def untrained(self) -> Path:
        """Directory of the model before anything."""
        return self.work / "made/model"

    @property
    def start(self) -> Path:
        """Directory of the model that all trials start from."""
        return self.work / "start"

    @property
    def teacher(self) -> Path:
        """Directory of the model that distillation learns from."""
        return self.work / "teacher"

    @property
    def problems_file(self) -> Path:
        """The problems to be learned from."""
        return self.work / "made/data/train.jsonl"

    def demonstrations(self) -> list[Row]:
        """The hasty teacher's."""
        return _read(self.work / "made/data/sft.jsonl")

    def formatter(self, schema: RowSchema, columns: Mapping[str, str] = COLUMNS) -> Formatter:
        """Makes rows to train on of rows of data."""
        return _formatter(self.untrained, schema, columns)

    def plan(self, trial: Trial, *, seed: int, num_rows: int, lag: int) -> StagePlan:
        """The stage that a user's YAML with these settings would give."""
        values = {
            "seed": seed,
            "checkpoint_root_dir": str(self.work / "checkpoints"),
            "algorithm": trial.algorithm,
            "model": {
                "model_path": str(self.start),
                "max_prompt_tokens": MAX_PROMPT_TOKENS,
                "max_response_tokens": MAX_RESPONSE_TOKENS,
            },
            "trainer": {**TRAINER, **trial.trainer},
            "cluster": {"node_num": 1, "gpu_per_node": 0},
        }
        sizes = {"batch_size": num_rows, "train_batch_size": num_rows, "total_steps": 10**6}
        source = _data_source if trial.is_on_data else _rollout_source
        given = source(self.problems_file, lag)
        given = {**given, "buffer": {**sizes, **given["buffer"]}}
        return plan_experiment(Config.model_validate({**values, **given})).stages[0]


def _data_source(path: Path, lag: int) -> Settings:
    del lag
    return {"mode": "train", "buffer": {"trainer_input": {"experience_buffer": _rows(path)}}}


def _rollout_source(path: Path, lag: int) -> Settings:
    """Returns the source of rollouts, with experts for the algorithms that need them."""
    taskset = {"path": str(path), "default_workflow_type": WORKFLOW}
    return {
        "mode": "both",
        "synchronizer": {"sync_offset": lag},
        "buffer": {
            "explorer_input": {"taskset": taskset},
            "trainer_input": {"auxiliary_buffers": {"sft_dataset": _rows(path)}},
        },
    }


def _rows(path: Path) -> Settings:
    return {"storage_type": "file", "path": str(path), "format": COLUMNS}


def encoded(formatter: Formatter, texts: Sequence[Row]) -> list[Unit]:
    """Rows to train on, the two of a pair together."""
    return [
        formatter(dict(text), index=index, position=index, weight=1.0)
        for index, text in enumerate(texts)
    ]


def _problems(made: Path, name: str) -> EncodedProblems:
    texts = _read(made / f"data/{name}.jsonl")
    rows = [row for (row,) in encoded(_formatter(made / "model", "sft", COLUMNS), texts)]
    return EncodedProblems(
        texts=texts,
        rows=rows,
        prompts_NP=np.stack([row.tokens[: row.prompt_length] for row in rows]).astype(np.int64),
        answers=[tuple(row.tokens[row.prompt_length :].tolist()) for row in rows],
    )


def _formatter(model: Path, schema: RowSchema, columns: Mapping[str, str]) -> Formatter:
    return load_formatter(
        model,
        name="problems",
        schema=schema,
        chat_template=None,
        row_format=FormatConfig.model_validate({"prompt_type": "plaintext", **columns}),
        max_length=MAX_PROMPT_TOKENS + MAX_RESPONSE_TOKENS,
    )


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]
