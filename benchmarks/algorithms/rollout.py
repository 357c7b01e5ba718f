"""Sampling with the model itself, many prompts of one length at a time.

N rollouts of at most T tokens after P tokens of prompt.
"""

from bisect import bisect_right
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
NUM_COHORTS = 6
"""Rollouts whose weights change at the same tokens are this share of a batch."""


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
    swaps: IntArray
    """How often weights had changed in this answer before each token."""


class Sampler:
    """A copy of the model that never learns; the trainer gives it weights.

    sampler = Sampler(directory)
    sampler.load(weights)
    rollouts = sampler.sample(prompts_NP, generator)

    With several versions answers begin with the first and change to each further one at a random
    token. What was computed for them is computed again, as by an engine that keeps its requests.
    """

    def __init__(self, directory: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._model = model.eval().requires_grad_(False)
        self._end = int(self._model.config.eos_token_id)
        self._versions: Sequence[Weights] = ()

    def load(self, *versions: Weights) -> None:
        """Takes these weights; those tied to others need not be there."""
        self._versions = versions if len(versions) > 1 else ()
        self._replace(versions[0])

    def _replace(self, weights: Weights) -> None:
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

        A rollout ends with the model's end, or with `stop`.
        """
        if not self._versions:
            return self._sample(prompts_NP, generator, max_tokens, stop, ())
        found = []
        for some_NP in np.array_split(prompts_NP, min(NUM_COHORTS, len(prompts_NP))):
            size = (len(self._versions) - 1,)
            swaps = torch.randint(1, max_tokens, size, generator=generator).sort().values.tolist()
            self._replace(self._versions[0])
            found += self._sample(some_NP, generator, max_tokens, stop, swaps)
        return found

    def _sample(
        self,
        prompts_NP: IntArray,
        generator: torch.Generator | None,
        max_tokens: int,
        stop: int | None,
        swaps: Sequence[int],
    ) -> list[Rollout]:
        """Samples with weights that change after these numbers of tokens; reads a prompt once."""
        prompts_MP, which_N = np.unique(prompts_NP, axis=0, return_inverse=True)
        all_NV, decoding = self._begin(prompts_MP, torch.from_numpy(which_N), max_tokens)
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
            if len(tokens) in swaps:
                self._replace(self._versions[bisect_right(swaps, len(tokens))])
                read_NL = np.hstack([prompts_NP, torch.stack(tokens, 1).clamp(min=0).numpy()])
                places_N = torch.arange(len(prompts_NP))
                all_NV, decoding = self._begin(read_NL, places_N, max_tokens - len(tokens))
            else:
                all_NV = decoding.step(chosen_N1[:, 0]).log_softmax(-1)
        tokens_NT, logprobs_NT = torch.stack(tokens, 1).numpy(), torch.stack(logprobs, 1).numpy()
        lengths_N = (tokens_NT >= 0).sum(1)
        return [
            Rollout(
                prompt=prompt,
                tokens=row[:length],
                logprobs=of_row[:length],
                is_own=np.ones(length, dtype=np.bool_),
                swaps=np.searchsorted(swaps, np.arange(length), side="right"),
            )
            for prompt, row, of_row, length in zip(
                prompts_NP, tokens_NT, logprobs_NT, lengths_N, strict=True
            )
        ]

    def _begin(
        self, tokens_ML: IntArray, which_N: torch.Tensor, max_tokens: int
    ) -> tuple[torch.Tensor, Decoding]:
        """Reads M sequences; returns the log-probabilities after those that N rows continue."""
        cache = DynamicCache()
        all_NV = self._after(torch.from_numpy(tokens_ML), cache)[which_N]
        return all_NV, Decoding(self._model, cache, which_N, num_tokens=max_tokens)

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
