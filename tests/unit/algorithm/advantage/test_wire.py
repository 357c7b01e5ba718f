"""What travels to the process of users' functions and back is what was sent."""

import json
from dataclasses import fields

import numpy as np

from tests.unit.algorithm.advantage.builders import random_samples
from trinity.algorithm.advantage.json_codec import (
    advantages_from_json,
    advantages_to_json,
    samples_from_json,
    samples_to_json,
)
from trinity.algorithm.advantage.samples import Advantages, Samples


def test_samples_arrive_as_they_are() -> None:
    for sent in (random_samples(4), Samples.of_groups()):
        got = samples_from_json(json.loads(json.dumps(samples_to_json(sent))))
        for one in fields(Samples):
            before, after = getattr(sent, one.name), getattr(got, one.name)
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)


def test_advantages_arrive_as_they_are() -> None:
    sent = Advantages(
        np.array([0.5, np.nan]),
        left_out=np.array([False, True]),
        reason="why",
        copies_of=np.array([-1, 0]),
        metrics={"x": np.array([1.0])},
    )
    got = advantages_from_json(json.loads(json.dumps(advantages_to_json(sent))))
    np.testing.assert_array_equal(got.values, sent.values)
    assert got.left_out is not None and got.left_out.tolist() == [False, True]
    assert got.copies_of is not None and got.copies_of.tolist() == [-1, 0]
    assert (got.reason, got.metrics["x"].tolist()) == ("why", [1.0])
    bare = advantages_from_json(advantages_to_json(Advantages(np.zeros(1))))
    assert bare.left_out is None and bare.copies_of is None and not bare.metrics
