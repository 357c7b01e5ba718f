"""A file that was written for Trinity-RFT, with a part of each kind, trains in one experiment."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import Launched
from tests.e2e.test_algorithms import Steps, figures

pytestmark = pytest.mark.timeout(900)

KINDS = ("plain", "simple", "turns", "steps", "agent", "built")
"""Workflows of the file, one for each row by its column `kind`."""
NUM_STEPS = 3
PLUGIN = """
from typing import Dict, List

import torch

from trinity.algorithm import ALGORITHM_TYPE, AlgorithmType
from trinity.algorithm.advantage_fn import ADVANTAGE_FN, GroupAdvantage
from trinity.algorithm.entropy_loss_fn.entropy_loss_fn import ENTROPY_LOSS_FN, EntropyLossFn
from trinity.algorithm.kl_fn.kl_fn import KL_FN, KLFn
from trinity.algorithm.policy_loss_fn.policy_loss_fn import POLICY_LOSS_FN, PolicyLossFn
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGY
from trinity.algorithm.sample_strategy.mix_sample_strategy import MixSampleStrategy
from trinity.algorithm.utils import masked_mean
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator
from trinity.common.experience import Experience, group_by
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards.reward_fn import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.common.workflows.step_wise_workflow import (
    AsyncRewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.common.workflows.workflow import MultiTurnWorkflow, SimpleWorkflow

from .helpers import share_of_digits


@REWARD_FUNCTIONS.register_module("their_digits")
class Digits(RewardFn):
    def __init__(self, **kwargs):
        pass

    def __call__(self, response, truth=None, **kwargs):
        return {"digits": share_of_digits(response), "score": 0.5}


@WORKFLOWS.register_module("plain")
class Plain(Workflow):
    can_reset: bool = True
    can_repeat: bool = True

    def __init__(self, task: Task, model: ModelWrapper, auxiliary_models: List):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.rollout_args = task.rollout_args
        self.reset(task)

    def reset(self, task: Task):
        self.question = task.raw_task.get("question")

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times = repeat_times
        self.run_id_base = run_id_base

    def run(self) -> List[Experience]:
        responses = self.model.chat(
            [{"role": "user", "content": self.question}],
            n=self.repeat_times,
            temperature=self.rollout_args.temperature,
        )
        return [
            Experience(
                tokens=response.tokens,
                prompt_length=response.prompt_length,
                reward=share_of_digits(response.response_text),
                logprobs=response.logprobs,
                metrics={"ran_plain": 1.0},
            )
            for response in responses
        ]


@WORKFLOWS.register_module("simple")
class Simple(SimpleWorkflow):
    def run(self) -> List[Experience]:
        experiences = super().run()
        for experience in experiences:
            experience.metrics["ran_simple"] = experience.reward
        return experiences


@WORKFLOWS.register_module("turns")
class Turns(MultiTurnWorkflow):
    def run(self) -> List[Experience]:
        messages = [{"role": "user", "content": self.task.task_desc}]
        for _ in range(2):
            answer = self.model.chat(messages)[0].response_text
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": "no"})
        reward = share_of_digits(answer)
        return [self.process_messages_to_experience(messages, reward, {"ran_turns": 1})]


@WORKFLOWS.register_module("steps")
class Steps(StepWiseRewardWorkflow):
    @property
    def max_step_num(self):
        return 2

    def step(self, step_num: int) -> bool:
        self.client.chat.completions.create(
            model=self.client.model_path,
            messages=[{"role": "user", "content": self.task.task_desc}],
        )
        return True

    def reward(self, exps: list[Experience], step_num: int) -> float:
        exps[0].metrics["ran_steps"] = step_num
        return share_of_digits(exps[0].response_text)


@WORKFLOWS.register_module("agent")
class Agent(AsyncRewardPropagationWorkflow):
    max_step_num = 2

    async def step_async(self, step_num: int) -> bool:
        client = self.model.get_openai_async_client()
        await client.chat.completions.create(
            model=(await client.models.list()).data[0].id,
            messages=[{"role": "user", "content": self.task.task_desc}],
        )
        return step_num == 0

    async def reward_async(self, exps: list[Experience]) -> float:
        exps[0].metrics["ran_agent"] = len(exps)
        return share_of_digits(exps[-1].response_text)


@WORKFLOWS.register_module("built")
class Built(Workflow):
    is_async: bool = True

    async def run_async(self) -> List[Experience]:
        (answer,) = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}])
        answer.reward = share_of_digits(answer.response_text)
        tokens = answer.tokens.clone()
        tokens[-1] = tokens[0]
        own = Experience(tokens=tokens, prompt_length=answer.prompt_length, reward=0.0)
        own.metrics["ran_built"] = 1.0
        return [answer, own]


@EXPERIENCE_OPERATORS.register_module("their_operator")
class Counting(ExperienceOperator):
    def __init__(self, bonus: float = 0.0):
        self.bonus = bonus

    def process(self, exps: List[Experience]):
        for exp in exps:
            exp.reward += self.bonus
        return exps, {"their_operator/seen": len(exps)}


@ADVANTAGE_FN.register_module("their_centred")
class Centred(GroupAdvantage):
    def group_experiences(self, exps):
        return group_by(exps, id_type="task")

    def calculate_group_advantage(self, group_id, exps):
        rewards = torch.tensor([exp.reward for exp in exps], dtype=torch.float32)
        for exp in exps:
            exp.advantages = (exp.reward - rewards.mean()) * exp.action_mask
            exp.returns = exp.advantages.clone()
        return exps, {"their_mean": rewards.mean().item()}


@POLICY_LOSS_FN.register_module("their_loss")
class Loss(PolicyLossFn):
    def __init__(self, backend: str = "verl", scale: float = 1.0) -> None:
        super().__init__(backend=backend)
        self.scale = scale

    def __call__(self, logprob, old_logprob, action_mask, advantages, expert_mask, **kwargs):
        ratio = torch.exp(logprob - old_logprob)
        per_token = torch.where(expert_mask[:, None], -logprob, -advantages * ratio)
        loss = masked_mean(per_token, action_mask) * self.scale
        shown = {"their_ratio": masked_mean(ratio.detach(), action_mask).item()}
        return loss, {**shown, "their_experts": expert_mask.float().mean().item()}

    @classmethod
    def default_args(cls) -> Dict:
        return {"scale": 2.0}


@SAMPLE_STRATEGY.register_module("their_strategy")
class Strategy(MixSampleStrategy):
    @classmethod
    def default_args(cls) -> Dict:
        return {"expert_data_ratio": 0.2, "sft_dataset_name": "shown"}


@KL_FN.register_module("their_kl")
class Squared(KLFn):
    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return (logprob - ref_logprob).square()


@ENTROPY_LOSS_FN.register_module("their_entropy")
class Entropy(EntropyLossFn):
    def __call__(self, entropy, action_mask, **kwargs):
        mean = masked_mean(entropy, action_mask)
        return mean * 0.01, {"their_entropy": mean.item()}

    @classmethod
    def default_args(cls) -> Dict:
        return {}


@ALGORITHM_TYPE.register_module("their_algorithm")
class Algorithm(AlgorithmType):
    use_critic: bool = False
    use_reference: bool = True
    compute_advantage_in_trainer: bool = False
    schema: str = "experience"

    @classmethod
    def default_config(cls) -> Dict:
        return {
            "repeat_times": 4,
            "sample_strategy": "their_strategy",
            "advantage_fn": "their_centred",
            "policy_loss_fn": "their_loss",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "their_kl",
            "entropy_loss_fn": "their_entropy",
        }
"""
HELPERS = """
def share_of_digits(text):
    return sum(character.isdigit() for character in text) / max(1, len(text))
"""
CONFIG = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
model: {{model_path: {root}/made/model, max_prompt_tokens: 40, max_response_tokens: 6}}
explorer:
  rollout_model:
    dtype: float32
    enforce_eager: true
    enable_openai_api: true
    enable_history: true
trainer: {{dtype: float32}}
stages:
  - stage_name: rft
    mode: both
    algorithm: {{algorithm_type: their_algorithm, optimizer: {{lr: 1.0e-4}}}}
    buffer:
      batch_size: 6
      train_batch_size: 30
      explorer_input:
        default_workflow_type: plain
        default_reward_fn_type: their_digits
        taskset:
          path: {root}/theirs/tasks.jsonl
          format: {{prompt_key: question, response_key: answer, workflow_key: kind}}
          data_selector: {{selector_type: offline_easy2hard, feature_keys: [ease]}}
      trainer_input:
        auxiliary_buffers:
          shown:
            path: {root}/made/data/sft.jsonl
            format: {{prompt_type: plaintext, prompt_key: question, response_key: answer}}
    data_processor:
      experience_pipeline:
        operators:
          - name: their_operator
            args: {{bonus: 1.0}}
    trainer: {{total_steps: 3}}
"""


def write_files(folder: Path) -> None:
    """Writes the file, one that it imports, and rows whose order by `ease` is not theirs."""
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins/parts.py").write_text(PLUGIN)
    (folder / "plugins/helpers.py").write_text(HELPERS)
    rows = [
        {"question": f"{i}+{i}=", "answer": str(2 * i), "kind": kind, "ease": -i}
        for i, kind in enumerate(KINDS * 4, 10)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "tasks.jsonl").write_text(text)


@pytest.fixture(scope="module")
def trained(launch: Launch) -> Launched:
    run = launch("parts-of-trinity-rft", CONFIG)
    folder = run.config.parent / "theirs"
    write_files(folder)
    run.start(TRINITY_PLUGIN_DIRS=str(folder / "plugins"))
    assert run.wait() == 0, run.text
    return run


@pytest.fixture(scope="module")
def shown(trained: Launched) -> Steps:
    return figures(trained, "")


def values_of(shown: Steps, name: str) -> list[float]:
    """The values, in all steps, of the figures whose names hold this one."""
    return [
        value for step in sorted(shown) for own, value in shown[step].items() if name in own
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_workflow_of_each_base_is_run_as_it_was_written(shown: Steps, kind: str) -> None:
    assert values_of(shown, f"ran_{kind}"), sorted({own for step in shown.values() for own in step})


def test_an_overridden_run_sees_the_sum_of_the_rewards_parts(shown: Steps) -> None:
    assert all(0.5 <= value <= 1.5 for value in values_of(shown, "ran_simple"))


def test_experiences_that_the_file_built_are_counted(shown: Steps) -> None:
    shares = values_of(shown, "built_by_workflow/mean") or values_of(shown, "built_by_workflow")
    assert shares and any(0 < share < 1 for share in shares), shares


@pytest.mark.parametrize("name", ["their_operator/seen", "their_mean", "their_ratio"])
def test_an_operator_an_advantage_and_a_loss_report_what_they_computed(
    shown: Steps, name: str
) -> None:
    values = values_of(shown, name)
    assert values and all(value > 0 for value in values), values


def test_a_strategy_brings_rows_of_data_into_every_batch_and_the_loss_knows_them(
    shown: Steps,
) -> None:
    assert values_of(shown, "sample/num_expert_rows") == [6] * NUM_STEPS
    assert values_of(shown, "train/num_rows") == [30] * NUM_STEPS
    assert all(0 < share < 1 for share in values_of(shown, "their_experts"))
    assert len(values_of(shown, "their_experts")) == NUM_STEPS


def test_the_divergence_and_the_entropy_are_those_of_the_file(shown: Steps) -> None:
    divergence = values_of(shown, "actor/kl_loss")
    assert len(divergence) == NUM_STEPS and 0 <= divergence[0] < divergence[-1]
    assert all(value > 0 for value in values_of(shown, "their_entropy"))


def test_the_weights_change_by_what_the_file_says(trained: Launched) -> None:
    assert len(trained.rewards()) == NUM_STEPS and trained.has_version("rft", NUM_STEPS)
