"""The limit: the very calls of explorer and trainer, one after the other in one process.

The same engine, tokenizer, learner and way to hand weights over; no gRPC, no broker, no database,
no hashes, no copies for a restart.
"""

import asyncio
import json
import os
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gang import join_alone
from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import detect_hardware, prepare_environment
from services.explorer.rollout.workflow_factory import SeedInputs
from services.trainer.types import RunReward, TrainBatch, TrainRow
from trinity.algorithm.advantage.grpo import grpo
from trinity.algorithm.advantage.samples import Samples
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A task with all that was made of it."""

    prompt: Prompt
    truth: str
    generations: list[Generation]


def main() -> None:
    """Read the job's arguments as JSON, print the steps as JSON on the last line."""
    job = OverheadJob.from_json(sys.argv[1])
    print(asyncio.run(measure(job)).to_json(), flush=True)
    os._exit(0)  # engines and process groups may take their time to end


async def measure(job: OverheadJob) -> Steps:
    """All steps of the job."""
    from services.trainer.learner.learner import Learner

    plan = job.plan()
    prepare_environment(plan.model_path, detect_hardware())
    tokenizer = load_tokenizer(plan.model_path, plan.chat_template)
    engine = await start_vllm(
        EngineOptions(
            model_path=plan.model_path,
            max_model_len=plan.max_model_len,
            end_token_ids=tokenizer.end_token_ids,
            rollout=plan.config.explorer.rollout_model,
        )
    )
    ranks = join_alone(num_threads=int(os.environ["OMP_NUM_THREADS"]))
    learner = Learner(plan=plan, model_directory=job.model, ranks=ranks)
    rows = [json.loads(line) for line in job.data.read_text().splitlines()]
    order = random.Random(1)
    steps = Steps()
    for step in range(1, job.num_steps + 1):
        began = time.perf_counter()
        tasks = order.sample(rows, job.num_tasks)
        groups = await _roll_out(engine, tokenizer, plan, tasks, step)
        rolled_out = time.perf_counter()
        batch = _batch(tokenizer, groups, step)
        scored = time.perf_counter()
        learner.train_step(batch, plan.learning_rate(step))
        trained = time.perf_counter()
        await engine.load_weights(_written(learner, job))
        ended = time.perf_counter()
        steps.add(
            ended - began,
            rollout=rolled_out - began,
            scoring=scored - rolled_out,
            training=trained - scored,
            weights=ended - trained,
        )
    await engine.close()
    return steps


async def _roll_out(
    engine: Engine,
    tokenizer: HuggingFaceTokenizer,
    plan: StagePlan,
    tasks: list[dict[str, str]],
    step: int,
) -> list[Group]:
    async def group(position: int, task: dict[str, str]) -> Group:
        prompt = tokenizer.encode_chat([{"role": "user", "content": task["question"]}])
        generations = await asyncio.gather(
            *(
                engine.generate(prompt.token_ids, _sampling(plan, step, position, run))
                for run in range(plan.algorithm.repeat_times)
            )
        )
        return Group(prompt=prompt, truth=task["answer"], generations=list(generations))

    return list(await asyncio.gather(*(group(i, task) for i, task in enumerate(tasks))))


def _sampling(plan: StagePlan, step: int, position: int, run: int) -> SamplingParams:
    seeds = SeedInputs(
        experiment_seed=1,
        stage=plan.name,
        kind="train",
        taskset="sums",
        explore_step=step,
        position=position,
        run=run,
    )
    return SamplingParams(max_tokens=plan.max_response_tokens, seed=seeds.seed_of_call(0))


def _batch(tokenizer: HuggingFaceTokenizer, groups: list[Group], step: int) -> TrainBatch:
    rows: list[TrainRow] = []
    for number, group in enumerate(groups):
        responses = [tokenizer.decode(generation.token_ids) for generation in group.generations]
        rewards = [float(text.strip() == group.truth) for text in responses]
        advantages = grpo(Samples.of_groups(rewards)).values
        for run, (made, advantage) in enumerate(zip(group.generations, advantages, strict=True)):
            num_tokens = len(made.token_ids)
            rows.append(
                TrainRow(
                    position=len(rows),
                    tokens=np.array([*group.prompt.token_ids, *made.token_ids], dtype=np.int32),
                    prompt_length=len(group.prompt.token_ids),
                    mask=np.ones(num_tokens, dtype=np.bool_),
                    rollout_logprobs=np.array(made.logprobs, dtype=np.float32),
                    advantages=np.full(num_tokens, advantage, dtype=np.float32),
                    run_reward=RunReward(
                        assignment_id=str(number), run=run, reward=float(rewards[run])
                    ),
                )
            )
    return TrainBatch(step=step, rows=rows, metrics={}, replayed=False)


def _written(learner: "object", job: OverheadJob) -> Path:
    """A directory of weights that the engine can load."""
    from safetensors.torch import save_file

    directory = job.work / "one-process-weights"
    if not directory.exists():
        shutil.copytree(job.model, directory)
    tensors = {name: tensor.contiguous() for name, tensor in learner.weights()}  # type: ignore[attr-defined]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


if __name__ == "__main__":
    main()
