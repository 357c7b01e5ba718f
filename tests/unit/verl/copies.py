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


def write_copy(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes a copy of veRL, in whose folder a script may lie."""
    every = {"trainer/config/ppo_trainer.yaml": YAML, "protocol.py": PROTOCOL, **files}
    every = {"__init__.py": "from verl.protocol import DataProto\n", **every}
    for name, text in every.items():
        path = folder / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
