"""The distance of a policy's whole distribution at a token from a teacher's.

Shapes: S tokens, V words of the vocabulary, K of them that a teacher tells.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

Direction = Literal["reverse", "forward"]
LEAST_LOGPROB = -1e4
"""Stands for that of a word that a model never says, whose own is minus infinity."""
LEAST_REST = 1e-7
"""Lower bound of the probability mass outside the top K; float32 cannot resolve less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTokens:
    """A teacher's distributions, of all words or of its likeliest ones.

    teacher = TeacherTokens.of(logits_SV, top_k=64)
    loss_S = divergence(policy_SV, teacher, "forward")
    """

    logprobs_SK: torch.Tensor
    words_SK: torch.Tensor | None
    """None if they are all words."""

    @classmethod
    def of(cls, logits_SV: torch.Tensor, *, top_k: int) -> "TeacherTokens":
        """Keeps the `top_k` likeliest words of each token; 0 keeps all."""
        all_SV = torch.log_softmax(logits_SV, dim=-1)
        if not 0 < top_k < all_SV.shape[-1]:
            return cls(logprobs_SK=all_SV, words_SK=None)
        likeliest = all_SV.topk(top_k, dim=-1)
        return cls(logprobs_SK=likeliest.values, words_SK=likeliest.indices)

    def split(self, size: int) -> Iterator["TeacherTokens"]:
        """Yields parts of `size` tokens, in order."""
        words = self.words_SK
        for number, logprobs in enumerate(self.logprobs_SK.split(size)):
            part = None if words is None else words[number * size : (number + 1) * size]
            yield TeacherTokens(logprobs_SK=logprobs, words_SK=part)


def divergence(
    logprobs_SV: torch.Tensor, teacher: TeacherTokens, direction: Direction
) -> torch.Tensor:
    """Returns KL(policy, teacher) if `reverse`, KL(teacher, policy) if `forward`, [S].

    Of a teacher that tells K words the others count as one, so that the K = V words give the whole
    divergence and fewer give less. Of two vocabularies the words that both have are compared.
    """
    policy, told = _told(logprobs_SV, teacher)
    first, second = (policy, told) if direction == "reverse" else (told, policy)
    return (first.exp() * (first - second)).sum(-1)


def _told(logprobs_SV: torch.Tensor, teacher: TeacherTokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities of policy and teacher for the same words."""
    if teacher.words_SK is None:
        num_shared = min(logprobs_SV.shape[-1], teacher.logprobs_SK.shape[-1])
        pair = (logprobs_SV, teacher.logprobs_SK)
        return _bounded(_among(pair[0], num_shared)), _bounded(_among(pair[1], num_shared))
    is_shared = teacher.words_SK < logprobs_SV.shape[-1]
    words = teacher.words_SK.where(is_shared, 0)
    policy_SK = logprobs_SV.gather(-1, words).where(is_shared, LEAST_LOGPROB)
    told_SK = teacher.logprobs_SK.where(is_shared, LEAST_LOGPROB)
    return _with_rest(_bounded(policy_SK)), _with_rest(_bounded(told_SK))


def _among(logprobs_SV: torch.Tensor, num_words: int) -> torch.Tensor:
    if logprobs_SV.shape[-1] == num_words:
        return logprobs_SV
    return torch.log_softmax(logprobs_SV[..., :num_words], dim=-1)


def _bounded(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.clamp_min(LEAST_LOGPROB)


def _with_rest(logprobs_SK: torch.Tensor) -> torch.Tensor:
    """Appends the log-probability of all other words together."""
    rest_S1 = 1.0 - logprobs_SK.exp().sum(-1, keepdim=True)
    return torch.cat([logprobs_SK, rest_S1.clamp_min(LEAST_REST).log()], -1)


def divergence_in_chunks(
    logprobs_SV: torch.Tensor, teacher: TeacherTokens, direction: Direction, *, size: int
) -> torch.Tensor:
    """Returns the same, of any number of tokens in the memory of a few.

    What a chunk needs for its gradient is computed again in the backward pass.
    """
    parts = zip(logprobs_SV.split(size), teacher.split(size), strict=True)
    compute: Callable[..., torch.Tensor] = divergence
    if not torch.is_grad_enabled():
        return torch.cat([compute(*part, direction) for part in parts])
    return torch.cat([checkpoint(compute, *part, direction, use_reentrant=False) for part in parts])
