"""The peer: GRPO in one file of torch and transformers, with neither vLLM nor verl."""

import json
import random
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps

CLIP = 0.2


def main() -> None:
    """Read the job's arguments as JSON, print the steps as JSON on the last line."""
    print(measure(OverheadJob.from_json(sys.argv[1])).to_json(), flush=True)


def measure(job: OverheadJob) -> Steps:
    """All steps of the job; prompts of one length, as the addition tasks have them."""
    torch.manual_seed(1)
    order = random.Random(1)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = [json.loads(line) for line in job.data.read_text().splitlines()]
    max_tokens = job.plan().max_response_tokens
    steps = Steps()
    for _ in range(job.num_steps):
        began = time.perf_counter()
        tasks = order.sample(rows, job.num_tasks)
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": task["question"]}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for task in tasks
            for _ in range(job.repeat_times)
        ]
        prompts_BP = torch.tensor(prompts)
        with torch.no_grad():
            generated = _generate(model, prompts_BP, max_tokens, tokenizer.eos_token_id)
        tokens_BT, logprobs_BT = generated
        rolled_out = time.perf_counter()
        texts = tokenizer.batch_decode(tokens_BT, skip_special_tokens=True)
        truths = [task["answer"] for task in tasks for _ in range(job.repeat_times)]
        rewards = torch.tensor([float(a.strip() == b) for a, b in zip(texts, truths, strict=True)])
        groups = rewards.view(job.num_tasks, job.repeat_times)
        advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
        scored = time.perf_counter()
        _train(model, optimizer, prompts_BP, tokens_BT, logprobs_BT, advantages.view(-1))
        ended = time.perf_counter()
        steps.add(
            ended - began,
            rollout=rolled_out - began,
            scoring=scored - rolled_out,
            training=ended - scored,
        )
    return steps


def _generate(
    model: PreTrainedModel, prompts_BP: torch.Tensor, max_tokens: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    model.eval()
    inputs, past = prompts_BP, None
    done = torch.zeros(len(prompts_BP), dtype=torch.bool)
    tokens, logprobs = [], []
    for _ in range(max_tokens):
        output = model(input_ids=inputs, past_key_values=past, use_cache=True)
        past = output.past_key_values
        distribution = output.logits[:, -1].log_softmax(-1)
        chosen = torch.multinomial(distribution.exp(), 1)[:, 0]
        chosen = torch.where(done, torch.full_like(chosen, end), chosen)
        tokens.append(chosen)
        logprobs.append(distribution.gather(1, chosen[:, None])[:, 0])
        done |= chosen == end
        inputs = chosen[:, None]
        if bool(done.all()):
            break
    return torch.stack(tokens, 1), torch.stack(logprobs, 1)


def _train(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    prompts_BP: torch.Tensor,
    tokens_BT: torch.Tensor,
    old_BT: torch.Tensor,
    advantages_B: torch.Tensor,
) -> None:
    model.train()
    start = prompts_BP.shape[1] - 1
    logits = model(input_ids=torch.cat([prompts_BP, tokens_BT], 1)).logits[:, start:-1]
    new_BT = logits.log_softmax(-1).gather(2, tokens_BT[..., None])[..., 0]
    ratio = (new_BT - old_BT).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    gain = torch.minimum(ratio * advantages_B[:, None], clipped * advantages_B[:, None])
    optimizer.zero_grad()
    (-gain.mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


if __name__ == "__main__":
    main()
