"""Samples carry the digests of the answers that they consist of, by what the engine was asked."""

import asyncio
from itertools import accumulate

import numpy as np
import pytest

from tests.support import origin_by_hand as by_hand
from tests.support.chat_families import ANSWERS, bpe_tokenizer, rollout
from tests.unit.workflows.scripted import ScriptedEngine, scripted_model
from tests.unit.workflows.test_turns import CHAT, FORGETS, NEWER, TAGS
from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import SampleRef, experience_from_proto, experience_to_proto
from trinity.data.codec_checks import checked_turn_digests, turn_digests
from trinity.types import EID, Experience, Pair
from trinity.workflows.model import ModelWrapper
from trinity.workflows.samples import BUILT, taken_over
from trinity.workflows.turns import merge_turns

REF = SampleRef(
    tenant="t",
    experiment_id="5b8f6a5e-0d0b-4f0c-9a4b-9f6f1a1c2d3e",
    assignment_id="0f6f2a0c-7b1f-4d55-8f2e-6a1c2d3e4f50",
    taskset="sums",
    task_index=7,
)


def sent(sample: Experience) -> pb.Experience:
    sample.eid = EID(stage="rft", batch=1, task=0, suffix="")
    sample.reward = 1.0
    return experience_to_proto(sample, REF)


@pytest.mark.parametrize(("template", "num_samples"), [(CHAT, 1), (FORGETS, 2)])
async def test_turns_are_what_the_engine_was_asked_and_gave(
    template: str, num_samples: int
) -> None:
    """A template that drops earlier thoughts splits the conversation."""
    tokenizer = bpe_tokenizer(TAGS, template, words=NEWER)
    texts = [*ANSWERS[:1], "because three and four\n</think>seven", *ANSWERS[1:2]]
    engine, samples = await rollout(tokenizer, template, [tokenizer.encode(t) for t in texts])
    contents, place = [], 0
    for prompt, tokens in engine.asked:
        logprobs = [-0.001 * (place + number) for number in range(1, len(tokens) + 1)]
        contents.append(by_hand.content(prompt, tokens, logprobs, [(0, len(tokens), 0, 1)]))
        place += len(tokens)
    assert len(samples) == num_samples
    for sample in samples:
        own, contents = contents[: len(sample.turns)], contents[len(sample.turns) :]
        chain = [*accumulate(own, by_hand.turn, initial=by_hand.ZEROS)][1:]
        message = sent(sample)
        assert checked_turn_digests(message) == turn_digests(message) == chain
        assert experience_from_proto(message).turns == sample.turns
    assert not contents


async def two_turns() -> tuple[ModelWrapper, list[Experience]]:
    model = scripted_model(ScriptedEngine(["one", "two"]))
    model.keep_history()
    messages = [{"role": "user", "content": "count"}]
    for _ in range(2):
        (turn,) = await model.chat_async(messages)
        messages.append({"role": "assistant", "content": turn.response_text})
        messages.append({"role": "user", "content": "on"})
    return model, model.extract_experience_from_history()


async def test_a_merged_sample_is_the_engines_whoever_merged_it() -> None:
    model, turns = await two_turns()
    [merged] = merge_turns(turns)
    merged.action_mask[:2] = False
    taken = taken_over(merged, model)
    assert taken.metrics[BUILT] == 0.0
    assert [turn.content_sha256 for turn in taken.turns] == [
        turn.content_sha256 for answer in turns for turn in answer.turns
    ]
    assert len(checked_turn_digests(sent(taken))) == 2


async def test_a_sample_that_a_workflow_built_is_no_answer() -> None:
    model, turns = await two_turns()
    built = turns[0].copied()
    built.origin = None
    built.sequence.tokens[-1] += 1
    taken = await asyncio.to_thread(taken_over, built, model)
    assert (taken.metrics[BUILT], taken.turns) == (1.0, ())
    body = taken.sequence
    content = by_hand.content(
        body.tokens[: body.prompt_length].tolist(),
        body.tokens[body.prompt_length :].tolist(),
        body.rollout_logprobs.tolist(),
        [(0, body.response_length, 4, 1)],
    )
    expected = [by_hand.turn(by_hand.ZEROS, content, b"trinity sample 1")]
    assert checked_turn_digests(sent(taken)) == expected
    pair = Experience(body=Pair(chosen=turns[0].sequence, rejected=turns[1].sequence))
    assert len(turn_digests(sent(pair))) == 2


def other_token(message: pb.Experience) -> None:
    tokens = np.frombuffer(message.sequence.tokens.data, np.int32).copy()
    tokens[-2] += 1
    message.sequence.tokens.data = tokens.tobytes()


def other_logprob(message: pb.Experience) -> None:
    logprobs = np.frombuffer(message.sequence.rollout_logprobs.data, np.float32).copy()
    logprobs[0] = -9.0
    message.sequence.rollout_logprobs.data = logprobs.tobytes()


def other_version(message: pb.Experience) -> None:
    message.version_spans[0].version += 1


def more_trained(message: pb.Experience) -> None:
    size = len(message.sequence.action_mask.data)
    message.sequence.action_mask.data = b"\x01" * size


def a_turn_less(message: pb.Experience) -> None:
    del message.turns[0]


def overlapping(message: pb.Experience) -> None:
    message.turns[1].prompt_length = message.turns[0].end - 1


def beyond(message: pb.Experience) -> None:
    message.turns[1].end += 1


def no_sequence(message: pb.Experience) -> None:
    sequence = pb.Sequence()
    sequence.CopyFrom(message.sequence)
    message.pair.chosen.CopyFrom(sequence)
    message.pair.rejected.CopyFrom(sequence)


async def test_what_is_not_as_the_engine_gave_it_is_refused() -> None:
    _, turns = await two_turns()
    for change, said in (
        (other_token, "a turn has other tokens"),
        (other_logprob, "a turn has other tokens"),
        (other_version, "a turn has other tokens"),
        (more_trained, "true for tokens of no turn"),
        (a_turn_less, "true for tokens of no turn"),
        (overlapping, "turns overlap"),
        (beyond, "do not lie in the response"),
        (no_sequence, "parts of one sequence"),
    ):
        message = sent(merge_turns(turns)[0])
        before = checked_turn_digests(message)
        change(message)
        with pytest.raises(ValueError, match=said):
            checked_turn_digests(message)
        if said.startswith("a turn has"):
            assert turn_digests(message) != before
