"""Sampling with the model itself, many prompts of one length at a time.

N rollouts of at most T tokens after P tokens of prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.algorithms.decoding import Decoding
from benchmarks.algorithms.job import IntArray
from trinity.types import FloatArray

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """An answer to a prompt."""

    prompt: IntArray
    tokens: IntArray
    """The end among them, if it came."""
    logprobs: FloatArray
    """Of each token, of the weights that made it; 0 for a tool's answer."""
    is_own: npt.NDArray[np.bool_]
    """False for a tool's answer."""


class Sampler:
    """A copy of the model that never learns; the trainer gives it weights.

    sampler = Sampler(directory)
    sampler.load(weights)
    rollouts = sampler.sample(prompts_NP, generator)
    """

    def __init__(self, directory: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._model = model.eval().requires_grad_(False)
        self._end = int(self._model.config.eos_token_id)

    def load(self, weights: Weights) -> None:
        """Takes these weights; those tied to others need not be there."""
        missing = self._model.load_state_dict(dict(weights), strict=False)
        assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}

    def weights(self) -> Weights:
        """A copy."""
        return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    def sample(
        self,
        prompts_NP: IntArray,
        generator: torch.Generator | None = None,
        *,
        max_tokens: int = 6,
        stop: int | None = None,
    ) -> list[Rollout]:
        """Exact samples of the model's distribution; without a generator the likeliest tokens.

        A rollout ends with the model's end, or with `stop`. Equal prompts are read once.
        """
        prompts_MP, numbers_N = np.unique(prompts_NP, axis=0, return_inverse=True)
        which_N, cache = torch.from_numpy(numbers_N), DynamicCache()
        all_NV = self._after(torch.from_numpy(prompts_MP), cache)[which_N]
        decoding = Decoding(self._model, cache, which_N, num_tokens=max_tokens)
        is_done_N = torch.zeros(len(prompts_NP), dtype=torch.bool)
        tokens, logprobs = [], []
        while True:
            if generator is None:
                chosen_N1 = all_NV.argmax(-1, keepdim=True)
            else:
                chosen_N1 = torch.multinomial(all_NV.exp(), 1, generator=generator)
            tokens.append(torch.where(is_done_N, -1, chosen_N1[:, 0]))
            logprobs.append(all_NV.gather(1, chosen_N1)[:, 0])
            is_done_N |= chosen_N1[:, 0] == self._end
            if stop is not None:
                is_done_N |= chosen_N1[:, 0] == stop
            if len(tokens) == max_tokens or is_done_N.all():
                break
            all_NV = decoding.step(chosen_N1[:, 0]).log_softmax(-1)
        tokens_NT, logprobs_NT = torch.stack(tokens, 1).numpy(), torch.stack(logprobs, 1).numpy()
        lengths_N = (tokens_NT >= 0).sum(1)
        return [
            Rollout(
                prompt=prompt,
                tokens=row[:length],
                logprobs=of_row[:length],
                is_own=np.ones(length, dtype=np.bool_),
            )
            for prompt, row, of_row, length in zip(
                prompts_NP, tokens_NT, logprobs_NT, lengths_N, strict=True
            )
        ]

    def _after(self, tokens_NL: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Returns the log-probabilities of the token after each prompt, [N, V]."""
        output = self._model(
            input_ids=tokens_NL, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        after_NV: torch.Tensor = output.logits[:, -1].float().log_softmax(-1)
        return after_NV

    def logprobs(
        self, sequences: Sequence[npt.NDArray[np.integer]], prompt_lengths: Sequence[int]
    ) -> list[FloatArray]:
        """Returns the log-probabilities of the tokens after each sequence's prompt."""
        longest = max(len(tokens) for tokens in sequences)
        tokens_NL = np.zeros((len(sequences), longest), dtype=np.int64)
        for number, tokens in enumerate(sequences):
            tokens_NL[number, : len(tokens)] = tokens
        labels_NL = torch.from_numpy(tokens_NL)
        all_NLV = self._model(input_ids=labels_NL).logits[:, :-1].float().log_softmax(-1)
        chosen_NL = all_NLV.gather(2, labels_NL[:, 1:, None])[..., 0].numpy()
        return [
            chosen_NL[number, prompt - 1 : len(tokens) - 1]
            for number, (tokens, prompt) in enumerate(zip(sequences, prompt_lengths, strict=True))
        ]
