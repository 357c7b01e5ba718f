"""The limit: the very calls of explorer and trainer, one after the other in one process.

The same engine, tokenizer, learner and way to hand weights over; no gRPC, no broker, no database,
no hashes, no copies for a restart.
"""

import asyncio
import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.gang import join_alone
from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps
from services.explorer.engine.images import ChatImages
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.engine.tokenizer import HuggingFaceTokenizer, load_tokenizer
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import detect_hardware, prepare_environment
from services.explorer.rollout.workflow_factory import SeedInputs
from services.trainer.types import RunReward, TrainBatch, TrainRow
from trinity.algorithm.advantage.grpo import grpo
from trinity.algorithm.advantage.samples import Samples
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.conversations import MARK, text_part
from trinity.data.images import IMAGE, content_of_data_url, part_of
from trinity.types import BlobRef, SamplingParams
from trinity.workflows.generation import Generation, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A task with all that was made of it."""

    prompt: Prompt
    truth: str
    generations: list[Generation]
    images: tuple[bytes, ...] = ()
    num_image_tokens: int = 0


class LocalImages:
    """Images that never leave this process."""

    contents: ClassVar[dict[bytes, bytes]] = {}

    @classmethod
    def part(cls, content: bytes) -> dict[str, Any]:
        """Keeps an image, and returns the part of a message that names it."""
        sha256 = hashlib.sha256(content).digest()
        cls.contents[sha256] = content
        return part_of(
            BlobRef(name=IMAGE, sha256=sha256, size=len(content), media_type="image/png")
        )

    async def read(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns images by hash."""
        return {sha256: self.contents[sha256] for sha256 in hashes}

    async def resolve(self, messages: Sequence[Any]) -> list[Any]:
        """Returns the chat, whose images are kept already."""
        return list(messages)


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
            vision=tokenizer.vision.tokens if tokenizer.vision is not None else None,
        )
    )
    images = ChatImages.of(tokenizer, LocalImages())
    ranks = join_alone(num_threads=int(os.environ["OMP_NUM_THREADS"]))
    learner = Learner(plan=plan, model_directory=job.model, ranks=ranks)
    rows = [json.loads(line) for line in job.data.read_text().splitlines()]
    order = random.Random(1)
    steps = Steps()
    for step in range(1, job.num_steps + 1):
        began = time.perf_counter()
        tasks = order.sample(rows, job.num_tasks)
        groups = await _roll_out(engine, tokenizer, images, plan, tasks, step)
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
    images: ChatImages | None,
    plan: StagePlan,
    tasks: list[dict[str, Any]],
    step: int,
) -> list[Group]:
    async def group(position: int, task: dict[str, Any]) -> Group:
        contents: list[bytes] = []
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        if images is not None:
            contents = [content_of_data_url(text) for text in task["images"]]
            parts = [*map(LocalImages.part, contents), text_part(task["question"][len(MARK) :])]
            messages = await images.loaded([{"role": "user", "content": parts}])
        prompt = tokenizer.encode_chat(messages)
        shown = prompt.token_ids if images is None else await images.shown(prompt)
        generations = await asyncio.gather(
            *(
                engine.generate(shown, _sampling(plan, step, position, run))
                for run in range(plan.algorithm.repeat_times)
            )
        )
        return Group(
            prompt=prompt,
            truth=task["answer"],
            generations=list(generations),
            images=tuple(contents),
            num_image_tokens=sum(tokenizer.image_tokens[ref.sha256] for ref in prompt.image_refs),
        )

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
                    images=group.images,
                    num_image_tokens=group.num_image_tokens,
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
