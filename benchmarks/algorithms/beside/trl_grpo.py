"""TRL's GRPOTrainer on the same start, problems and steps; runs with TRL's folder on the path.

    python -m benchmarks.algorithms.beside.trl_grpo WORK MODEL SEED NUM_STEPS

Its last line is the course as JSON.
"""

import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.algorithms.beside.course import Course
from benchmarks.algorithms.beside.ours import EVAL_INTERVAL, NUM_HELD_OUT, NUM_ROWS
from benchmarks.algorithms.job import TrialJob
from benchmarks.algorithms.play import TaskPlayer
from benchmarks.algorithms.rollout import Sampler
from benchmarks.algorithms.trials import SETTINGS


def main() -> None:
    """Trains and prints the course."""
    work, model, seed, num_steps = sys.argv[1:]
    print(train(Path(work), model, seed=int(seed), num_steps=int(num_steps)).to_json(), flush=True)


def train(work: Path, model: str, *, seed: int, num_steps: int) -> Course:
    """Trains from the warm start, which must be there."""
    warnings.simplefilter("ignore")
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]  # beside this one

    torch.set_num_threads(1)
    job = TrialJob.prepared(work / model.replace(" ", "-"))
    job = replace(job, held_out=job.held_out.taken(NUM_HELD_OUT[model]))
    rows = [_row(text) for text in job.train.texts]
    watch = Watch(job, interval=EVAL_INTERVAL[model], num_steps=num_steps)
    trainer = GRPOTrainer(
        model=str(job.start),
        reward_funcs=is_right,
        args=GRPOConfig(**_settings(work, NUM_ROWS[model], job, seed, num_steps)),
        train_dataset=Dataset.from_list(rows),
        callbacks=[watch.callback()],
    )
    trainer.train()
    return Course(
        contender="TRL's GRPOTrainer",
        algorithm="grpo",
        model=model,
        seed=seed,
        num_rows=NUM_ROWS[model],
        start=watch.start,
        accuracies=watch.accuracies,
        seconds=watch.seconds,
        whole_seconds=round(time.process_time(), 1),
    )


def _row(text: dict[str, str]) -> dict[str, Any]:
    prompt = [{"role": "user", "content": text["question"]}]
    return {"prompt": prompt, "answer": text["answer"]}


def is_right(completions: list[Any], answer: list[str], **_: object) -> list[float]:
    """Rewards the answers that are right."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(text.strip() == truth) for text, truth in zip(texts, answer, strict=True)]


def _settings(
    work: Path, num_rows: int, job: TrialJob, seed: int, num_steps: int
) -> dict[str, Any]:
    """Returns those of our runs by TRL's names; the others are TRL's defaults."""
    optimizer = SETTINGS["optimizer"]
    return {
        "output_dir": str(work / "trl"),
        "per_device_train_batch_size": num_rows,
        "gradient_accumulation_steps": 1,
        "num_generations": SETTINGS["repeat_times"],
        "num_iterations": 1,
        "max_completion_length": job.max_response_tokens,
        "max_steps": num_steps,
        "learning_rate": optimizer["lr"],
        "warmup_steps": optimizer["lr_warmup_steps"],
        "lr_scheduler_type": "constant_with_warmup",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "beta": 0.0,
        "epsilon": 0.2,
        "loss_type": "bnpo",  # the mean over all tokens of a batch
        "temperature": 1.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": seed,
    }


class Watch:
    """Evaluates while TRL trains, and keeps the time of it apart."""

    def __init__(self, job: TrialJob, *, interval: int, num_steps: int) -> None:
        self._job = job
        self._interval = interval
        self._num_steps = num_steps
        self._sampler, self._player = Sampler(job.start), TaskPlayer(job)
        self.start = self._player.accuracy(self._sampler, job.held_out)
        self.accuracies: dict[int, float] = {}
        self.seconds: dict[int, float] = {}
        self._began = 0.0

    def begin(self) -> None:
        """Training begins."""
        self._began = time.process_time()

    def end_step(self, step: int, model: Any) -> None:
        """A step has ended."""
        if step % self._interval and step != self._num_steps:
            return
        stopped = time.process_time()
        self.seconds[step] = round(stopped - self._began, 2)
        self._sampler.load(model.state_dict())
        self.accuracies[step] = self._player.accuracy(self._sampler, self._job.held_out)
        self._began += time.process_time() - stopped

    def callback(self) -> Any:
        """Returns what TRL calls."""
        from transformers import TrainerCallback

        watch = self

        class Callback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                watch.begin()

            def on_step_end(self, _: Any, state: Any, __: Any, **given: Any) -> None:
                watch.end_step(state.global_step, given["model"])

        return Callback()


if __name__ == "__main__":
    main()
