"""Data that token advantages may need, and where it comes from."""

from collections.abc import Mapping
from typing import Literal

Need = Literal[
    "values",
    "entropies",
    "collision",
    "discriminator",
    "teacher",
    "reference",
    "baselines",
    "reward_parts",
]
"""Data that a token advantage may need beyond what every batch has.

values: the critic's; entropies: of the policy's distribution at each token; collision: the sum of
its squared probabilities there; discriminator: the sum over its vocabulary of p^2 (H + log p), H
the entropy; teacher: log-probabilities that the rollout brought with it; reference: those of the
reference model; baselines: the reward of a greedy rollout of the same task; reward_parts: the terms
of each rollout's reward."""

NEED_HINTS: Mapping[Need, str] = {
    "values": "values of a critic; choose an algorithm_type that has one, such as ppo",
    "entropies": "entropies, which the trainer computes with the log-probabilities",
    "collision": "sums of squared probabilities, which the trainer computes",
    "discriminator": "mean entropy discriminators, which the trainer computes",
    "teacher": "teacher log-probabilities; the workflow must put `teacher_logprobs` into each "
    "experience",
    "reference": "log-probabilities of the reference model, which the trainer computes",
    "baselines": "rewards of greedy rollouts; the workflow must put `reward_baseline` into each "
    "experience",
    "reward_parts": "the parts of each reward; the workflow must put `reward_parts` into each "
    "experience",
}
