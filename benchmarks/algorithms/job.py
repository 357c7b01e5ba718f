"""A task's problems as tokens, and the plan that a trial trains by."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers.utils.logging import disable_progress_bar

from benchmarks.algorithms.tasks import ASKED, TOLD, BenchTask, Row, hinted
from benchmarks.algorithms.trials import TEACHER, Settings, Trial
from benchmarks.overhead.untrained_model import write_untrained_model
from examples.addition.model import MAX_LENGTH
from examples.addition.prepare import prepare
from services.trainer.data.encoders import Formatter, load_formatter
from services.trainer.types import TrainRow
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.data import FormatConfig
from trinity.config.schema.experiment import Config

IntArray = npt.NDArray[np.int64]
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

    def taken(self, number: int) -> "EncodedProblems":
        """Returns the first ones alone."""
        return EncodedProblems(
            texts=self.texts[:number],
            rows=self.rows[:number],
            prompts_NP=self.prompts_NP[:number],
            answers=self.answers[:number],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialJob:
    """Everything that trials share, under one directory."""

    work: Path
    train: EncodedProblems
    held_out: EncodedProblems
    task: BenchTask | None = None
    """None for the example's addition."""
    hinted_prompts: IntArray | None = None
    """Of the problems to train on, [problems, tokens], with their answers as hints."""

    @classmethod
    def prepared(cls, work: Path, task: BenchTask | None = None) -> "TrialJob":
        """Make the task's model and data where they are not there yet."""
        if task is None:
            prepare(work / "made", seed=SEED)
        else:
            make_task(work / "made", task, SEED)
        train = _problems(work / "made", "train", task)
        return cls(
            work=work,
            train=train,
            held_out=_problems(work / "made", "test", task),
            task=task,
            hinted_prompts=None if task is None else _hinted_prompts(work / "made", train, task),
        )

    @property
    def max_prompt_tokens(self) -> int:
        """Length of a prompt, with a hint in it."""
        hinted = 0 if self.hinted_prompts is None else self.hinted_prompts.shape[1]
        return max(MAX_PROMPT_TOKENS, hinted)

    @property
    def max_response_tokens(self) -> int:
        """Length of an answer, the tool's part included."""
        return MAX_RESPONSE_TOKENS if self.task is None else self.task.max_response_tokens

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

    def shown(self) -> list[Unit]:
        """The demonstrations as rows to train on, without the tool's part of them."""
        units = encoded(self.formatter("sft"), self.demonstrations())
        if self.task is None or self.task.game is None:
            return units
        told = tool_tokens(self.untrained)
        return [without_tool(unit, told) for unit in units]

    def formatter(self, schema: RowSchema, columns: Mapping[str, str] = COLUMNS) -> Formatter:
        """Makes rows to train on of rows of data."""
        return _formatter(self.untrained, schema, columns, self.task)

    def plan(self, trial: Trial, *, seed: int, num_rows: int, lag: int) -> StagePlan:
        """The stage that a user's YAML with these settings would give."""
        values = {
            "seed": seed,
            "checkpoint_root_dir": str(self.work / "checkpoints"),
            "algorithm": self._algorithm(trial),
            "model": {
                "model_path": str(self.start),
                "max_prompt_tokens": self.max_prompt_tokens,
                "max_response_tokens": self.max_response_tokens,
            },
            "trainer": {**TRAINER, **self._passes(trial), **trial.trainer},
            "cluster": {"node_num": 1, "gpu_per_node": 0},
        }
        sizes = {"batch_size": num_rows, "train_batch_size": num_rows, "total_steps": 10**6}
        source = _data_source if trial.is_on_data else _rollout_source
        given = source(self.problems_file, lag)
        given = {**given, "buffer": {**sizes, **given["buffer"]}}
        return plan_experiment(Config.model_validate({**values, **given})).stages[0]

    def _passes(self, trial: Trial) -> Settings:
        """The critic makes as many as the policy."""
        if self.task is None or trial.is_on_data:
            return {}
        return {"ppo_epochs": self.task.num_passes}

    def _algorithm(self, trial: Trial) -> Settings:
        """Returns the settings of a trial, with the directory of a teacher in the trainer."""
        distillation = trial.algorithm.get("distillation")
        if distillation is None:
            return trial.algorithm
        assert distillation["model_path"] == TEACHER
        return {**trial.algorithm, "distillation": {"model_path": str(self.teacher)}}


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


def make_task(made: Path, task: BenchTask, seed: int) -> None:
    """Writes data and the untrained model of a task; nothing if they are there."""
    if (made / "model/config.json").exists():
        return
    (made / "data").mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("sft", "train", "test"), task.rows(seed), strict=True):
        lines = [json.dumps(row) + "\n" for row in rows]
        (made / f"data/{name}.jsonl").write_text("".join(lines))
    from benchmarks.algorithms.job import save_model  # imports transformers

    save_model(made / "model", seed)


def without_tool(rows: Sequence[TrainRow], told: tuple[int, int]) -> list[TrainRow]:
    """Masks a tool's answer: everything from after the first of the two tokens to the second.

    A row without them is learned as a whole.
    """
    found = []
    for row in rows:
        answer = row.tokens[row.prompt_length :]
        first, last = (np.flatnonzero(answer == token) for token in told)
        mask = row.mask.copy()
        if len(first) and len(last):
            mask[first[0] + 1 : last[0] + 1] = False
        found.append(replace(row, mask=mask))
    return found


def tool_tokens(model: Path) -> tuple[int, int]:
    """Returns the tokens that end a call and an answer of a tool."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    asked, told = (tokenizer.convert_tokens_to_ids(text) for text in (ASKED, TOLD))
    return asked, told


def _problems(made: Path, name: str, task: BenchTask | None) -> EncodedProblems:
    texts = _read(made / f"data/{name}.jsonl")
    formatter = _formatter(made / "model", "sft", COLUMNS, task)
    rows = [row for (row,) in encoded(formatter, texts)]
    if task is not None and task.game is not None:
        rows = without_tool(rows, tool_tokens(made / "model"))
    return EncodedProblems(
        texts=texts,
        rows=rows,
        prompts_NP=np.stack([row.tokens[: row.prompt_length] for row in rows]).astype(np.int64),
        answers=[tuple(row.tokens[row.prompt_length :].tolist()) for row in rows],
    )


def _hinted_prompts(made: Path, problems: EncodedProblems, task: BenchTask) -> IntArray | None:
    if not task.shows_hints:
        return None
    formatter = _formatter(made / "model", "sft", COLUMNS, task)
    texts = [{**text, "question": hinted(text)} for text in problems.texts]
    rows = [row.tokens[: row.prompt_length] for (row,) in encoded(formatter, texts)]
    return np.stack(rows).astype(np.int64)


def _formatter(
    model: Path, schema: RowSchema, columns: Mapping[str, str], task: BenchTask | None
) -> Formatter:
    longest = MAX_RESPONSE_TOKENS if task is None else task.max_response_tokens
    return load_formatter(
        model,
        name="problems",
        schema=schema,
        chat_template=None,
        row_format=FormatConfig.model_validate({"prompt_type": "plaintext", **columns}),
        max_length=(MAX_PROMPT_TOKENS if task is None else MAX_LENGTH) + longest,
    )


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def save_model(directory: Path, seed: int) -> None:
    """Writes an untrained model of 0.1 million parameters as a Hugging Face directory.

    The same seed gives the same bytes.
    """
    disable_progress_bar()
    write_untrained_model(
        directory,
        seed=seed,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        initializer_range=0.05,
    )
