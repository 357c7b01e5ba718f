"""Rollouts of the benchmark of algorithms are exact samples, with their own log-probabilities."""

import numpy as np
import pytest
import torch

from benchmarks.algorithms.rollout import Sampler
from tests.unit.trainer.builders import VOCABULARY, save_tiny_model

END = 1
PROMPTS = np.array([[5, 6, 7], [8, 9, 10], [5, 6, 7]])


@pytest.fixture(scope="module", params=[2, 1], ids=["a key a query", "grouped"])
def sampler(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Sampler:
    directory = tmp_path_factory.mktemp("model")
    return Sampler(save_tiny_model(directory, num_kv_heads=request.param))


def test_tokens_have_the_logprobs_that_a_forward_pass_gives_them(sampler: Sampler) -> None:
    rollouts = sampler.sample(np.repeat(PROMPTS, 50, axis=0), torch.Generator().manual_seed(0))
    found = sampler.logprobs(
        [np.concatenate([one.prompt, one.tokens]) for one in rollouts], [3] * len(rollouts)
    )
    for rollout, logprobs in zip(rollouts, found, strict=True):
        np.testing.assert_allclose(rollout.logprobs, logprobs, atol=1e-4)


def test_tokens_have_the_logprobs_of_the_version_that_drew_them(sampler: Sampler) -> None:
    own = sampler.weights()
    versions = [{name: tensor + 0.1 * age for name, tensor in own.items()} for age in range(3)]
    try:
        sampler.load(*versions)
        rollouts = sampler.sample(
            np.repeat(PROMPTS, 20, axis=0), torch.Generator().manual_seed(0), max_tokens=12
        )
        assert {swaps for one in rollouts for swaps in one.swaps.tolist()} == {0, 1, 2}
        for number, version in enumerate(versions):
            sampler.load(version)
            found = sampler.logprobs(
                [np.concatenate([one.prompt, one.tokens]) for one in rollouts], [3] * len(rollouts)
            )
            for rollout, logprobs in zip(rollouts, found, strict=True):
                of_version = rollout.swaps == number
                np.testing.assert_allclose(
                    rollout.logprobs[of_version], logprobs[of_version], atol=1e-4
                )
    finally:
        sampler.load(own)


def test_an_answer_stops_after_its_end(sampler: Sampler) -> None:
    rollouts = sampler.sample(np.repeat(PROMPTS, 100, axis=0), torch.Generator().manual_seed(0))
    ended = [one.tokens.tolist() for one in rollouts if END in one.tokens]
    assert ended
    assert all(tokens.index(END) == len(tokens) - 1 for tokens in ended)


def test_tokens_are_as_frequent_as_they_are_probable(sampler: Sampler) -> None:
    num = 4000
    rollouts = sampler.sample(np.repeat(PROMPTS[:1], num, axis=0), torch.Generator().manual_seed(0))
    counts_V = np.bincount([one.tokens[0] for one in rollouts], minlength=VOCABULARY)
    chances = {int(one.tokens[0]): float(np.exp(one.logprobs[0])) for one in rollouts}
    for token, chance in chances.items():
        deviation = (chance * (1 - chance) / num) ** 0.5
        assert abs(counts_V[token] / num - chance) < 5 * deviation + 1 / num


def test_without_chance_equal_prompts_have_equal_answers(sampler: Sampler) -> None:
    first, other, again = (one.tokens.tolist() for one in sampler.sample(PROMPTS))
    assert first == again
    assert first != other


def test_tokens_are_those_of_the_models_own_forward_pass(sampler: Sampler) -> None:
    rollouts = sampler.sample(PROMPTS, max_tokens=12)
    for rollout in rollouts:
        tokens = np.concatenate([rollout.prompt, rollout.tokens])
        for place in range(len(rollout.prompt), len(tokens)):
            (likeliest,) = sampler.sample(tokens[None, :place], max_tokens=1)
            assert likeliest.tokens[0] == tokens[place]
