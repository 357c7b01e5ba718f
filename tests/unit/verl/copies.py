"""Small copies of veRL with a reward of their own, in the style of several releases."""

from collections.abc import Mapping
from pathlib import Path

PROTOCOL = """
import torch
class Item:
    def __init__(self, batch, non_tensor_batch):
        self.batch, self.non_tensor_batch = batch, non_tensor_batch
class DataProto(Item):
    @classmethod
    def from_dict(cls, tensors, non_tensors):
        return cls(tensors, non_tensors)
    def __len__(self):
        return len(self.batch["responses"])
    def __getitem__(self, i):
        return Item({k: v[i] for k, v in self.batch.items()},
                    {k: v[i] for k, v in self.non_tensor_batch.items()})
"""
SCORES = """
def default_compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "words":
        from verl.utils.reward_score import words
        return words.compute_score(solution_str, ground_truth)
    raise NotImplementedError(data_source)
"""
WORDS = """
def compute_score(solution_str, ground_truth):
    return float(solution_str.count(ground_truth))
"""
SCORING = """
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for i in range(len(data)):
            item = data[i]
            prompt = item.batch["prompts"]
            length = item.batch["attention_mask"][len(prompt):].sum()
            answer = item.batch["responses"][:length]
"""
OLD_MAIN = f"""
import ray
import torch
from vllm import LLM
from verl.utils.reward_score import words
def _select_rm_score_fn(data_source):
    if "words" in data_source:
        return words.compute_score
    raise NotImplementedError
class RewardManager:
    def __init__(self, tokenizer, num_examine):
        self.tokenizer = tokenizer
    def __call__(self, data):
{SCORING}
            text = self.tokenizer.decode(torch.cat((prompt, answer)))
            score = _select_rm_score_fn(item.non_tensor_batch["data_source"])
            truth = item.non_tensor_batch["reward_model"]["ground_truth"]
            rewards[i, length - 1] = score(solution_str=text, ground_truth=truth)
        return rewards
@ray.remote
def main_task(config):
    reward_fn = RewardManager(tokenizer=tokenizer, num_examine=0)
"""
NEW_MAIN = """
def load_reward_manager(config, tokenizer, num_examine, **reward_kwargs):
    reward_manager_cls = get_reward_manager_cls(config.reward_model.get("reward_manager", "naive"))
    return reward_manager_cls(
        tokenizer=tokenizer, num_examine=num_examine, compute_score=final_compute_score,
        scale=config.trainer.get("bonus_scale", 1), **reward_kwargs,
    )
"""
REGISTERED = f"""
import torch
from verl.workers.reward_manager import register
@register("short")
class ShortRewardManager:
    def __init__(self, tokenizer, num_examine, compute_score=None, scale=1, offset=0):
        self.tokenizer, self.score, self.scale = tokenizer, compute_score, scale
        self.offset = offset
    def __call__(self, data, return_dict=False):
{SCORING}
            text = self.tokenizer.decode(answer, skip_special_tokens=True)
            row = item.non_tensor_batch
            score = self.score(row["data_source"], text, row["reward_model"]["ground_truth"])
            rewards[i, length - 1] = score * self.scale + self.offset
        return {{"reward_tensor": rewards, "reward_extra_info": {{"acc": [score], "who": ["a"]}}}}
"""
REGISTRY = """
def register(name):
    return lambda cls: cls
"""
YAML = "data: {max_response_length: 64}\nreward_model: {enable: False}\ntrainer: {bonus_scale: 1}\n"
OLD: Mapping[str, str] = {
    "trainer/main_ppo.py": OLD_MAIN,
    "utils/reward_score/words.py": WORDS,
}
NEW: Mapping[str, str] = {
    "trainer/ppo/reward.py": NEW_MAIN,
    "utils/reward_score/__init__.py": SCORES,
    "utils/reward_score/words.py": WORDS,
    "workers/reward_manager/__init__.py": REGISTRY,
    "workers/reward_manager/short.py": REGISTERED,
}

ALGORITHMS = """
import numpy, torch
import ray
from vllm import LLM
import verl.utils.torch_functional as verl_F
from verl.utils.names import MODES
POLICY_LOSS_REGISTRY = {}
def register_policy_loss(name):
    def decorate(function):
        POLICY_LOSS_REGISTRY[name] = function
        return function
    return decorate
@register_policy_loss("steep")
def compute_policy_loss_steep(old_log_prob, log_prob, advantages, response_mask, config=None):
    ratio = torch.exp(log_prob - old_log_prob)
    loss = verl_F.masked_mean(-advantages * ratio ** config.power, response_mask)
    return loss, ratio.mean()
def compute_policy_loss(old_log_prob, log_prob, advantages, eos_mask, cliprange, floor=0.0):
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = torch.clamp(ratio, 1 - cliprange, 1 + 2 * cliprange)
    losses = torch.maximum(-advantages * ratio, -advantages * clipped)
    return verl_F.masked_mean(losses, eos_mask) + floor, ratio.mean()
def compute_share_outcome_advantage(token_level_rewards, response_mask, index, power):
    assert MODES
    scores = token_level_rewards.sum(-1)
    total = {}
    for name, score in zip(index, scores.tolist()):
        total[name] = total.get(name, 0) + score
    shares = [score / (total[name] or 1) for name, score in zip(index, scores.tolist())]
    values = torch.tensor(shares) ** power
    return values[:, None] * response_mask, values[:, None] * response_mask
"""
TORCH_FUNCTIONAL = """
from flash_attn import flash
import absent_package
def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()
"""
TRAINER = """
import ray, os
from enum import Enum
from verl import DataProto
from verl.trainer.ppo import core_algos
raise_if_run = os._exit(9) if False else None
class AdvantageEstimator(str, Enum):
    GAE = "gae"
    SHARE = "share"
def compute_advantage(data: DataProto, adv_estimator, gamma=1.0, power=1):
    if adv_estimator == AdvantageEstimator.GAE:
        data.batch["values"]
    elif adv_estimator == AdvantageEstimator.SHARE:
        length = data.batch["responses"].size(-1)
        mask = data.batch["attention_mask"][:, -length:]
        advantages, returns = core_algos.compute_share_outcome_advantage(
            data.batch["token_level_rewards"], mask, data.non_tensor_batch["uid"], power)
        data.batch["advantages"] = advantages
        data.batch["returns"] = returns
    elif adv_estimator == "certain":
        data.batch["advantages"] = data.batch["self_certaintys"]
    elif adv_estimator == "engine":
        ray.get(data.batch["advantages"])
    elif adv_estimator == "whole":
        data.batch["advantages"] = core_algos.compute_whole(data=data)
    return data
class RayPPOTrainer:
    def fit(self):
        power = self.config.algorithm.get("power", 2)
        batch = compute_advantage(batch, self.config.algorithm.adv_estimator, power=power)
"""
ACTOR = """
from verl.trainer.ppo import core_algos
class DataParallelPPOActor:
    def update_policy(self, data):
        clip_ratio = self.config.clip_ratio
        loss_mode = self.config.policy_loss.get("loss_mode", "vanilla")
        if loss_mode == "vanilla":
            loss, _ = core_algos.compute_policy_loss(
                old_log_prob=old_log_prob, log_prob=log_prob, advantages=advantages,
                eos_mask=mask, cliprange=clip_ratio, floor=self.config.floor)
        else:
            policy_loss_fn = get_policy_loss_fn(loss_mode)
            loss, _ = policy_loss_fn(old_log_prob=old_log_prob, log_prob=log_prob,
                                     advantages=advantages, response_mask=mask, config=self.config)
"""
FUNCTIONS: Mapping[str, str] = {
    "trainer/ppo/core_algos.py": ALGORITHMS,
    "trainer/ppo/ray_trainer.py": TRAINER,
    "utils/names.py": "MODES = (1,)\n",
    "utils/torch_functional.py": TORCH_FUNCTIONAL,
    "workers/actor/dp_actor.py": ACTOR,
}


def write_copy(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes a copy of veRL, in whose folder a script may lie."""
    every = {"trainer/config/ppo_trainer.yaml": YAML, "protocol.py": PROTOCOL, **files}
    every = {"__init__.py": "from verl.protocol import DataProto\n", **every}
    for name, text in every.items():
        path = folder / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
