"""The peer: the same job by TRL's GRPOTrainer, whose rollouts transformers generates."""

import json
import sys
import time
from itertools import pairwise

from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps


def main() -> None:
    """Reads the job's arguments as JSON, prints the steps as JSON on the last line."""
    print(measure(OverheadJob.from_json(sys.argv[1])).to_json(), flush=True)


def measure(job: OverheadJob) -> Steps:
    """All steps of the job; a step lasts from its begin to the next one's."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    begins: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Notes when each step begins."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            begins.append(time.perf_counter())

        def on_train_end(self, *_: object, **__: object) -> None:
            begins.append(time.perf_counter())

    plan = job.plan()
    rows = [json.loads(line) for line in job.data.read_text().splitlines()]
    asked = [
        {"prompt": [{"role": "user", "content": row["question"]}], "truth": row["answer"]}
        for row in rows
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.model, dtype="float32"),
        processing_class=AutoTokenizer.from_pretrained(job.model),
        reward_funcs=_exact_match,
        train_dataset=Dataset.from_list(asked),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(job.work / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=job.num_tasks * job.repeat_times,
            num_generations=job.repeat_times,
            max_completion_length=plan.max_response_tokens,
            max_steps=job.num_steps,
            learning_rate=1e-4,
            beta=0.0,
            temperature=1.0,
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            seed=1,
        ),
    )
    trainer.train()
    steps = Steps()
    for begin, end in pairwise(begins):
        steps.add(end - begin)
    return steps


def _exact_match(
    completions: list[list[dict[str, str]]], truth: list[str], **_: object
) -> list[float]:
    return [
        float(answer[0]["content"].strip() == right)
        for answer, right in zip(completions, truth, strict=True)
    ]


if __name__ == "__main__":
    main()
