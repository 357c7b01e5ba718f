"""Conditions are what a person writes, and a mistake gets one sentence."""

import pytest

from tests.unit.subtests import as_subtests
from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.errors import UserError
from trinity.run.conditions import parse_conditions


@as_subtests(
    ("word", "meant"),
    [
        ("reward=0.5", pb.ExperienceFilter(reward_min=0.5, reward_max=0.5)),
        ("reward=0..1", pb.ExperienceFilter(reward_min=0, reward_max=1)),
        ("reward=..-0.5", pb.ExperienceFilter(reward_max=-0.5)),
        ("reward=1e-3..", pb.ExperienceFilter(reward_min=1e-3)),
        ("version=3", pb.ExperienceFilter(version_min=3, version_max=3)),
        ("version=3..", pb.ExperienceFilter(version_min=3)),
        ("task=12", pb.ExperienceFilter(task_index=12)),
        ("task=my:set:12", pb.ExperienceFilter(taskset="my:set", task_index=12)),
        ("taskset=sums", pb.ExperienceFilter(taskset="sums")),
        ("explore_step=7", pb.ExperienceFilter(explore_step=7)),
        ("step=412", pb.ExperienceFilter(train_step=412)),
        ("step=7..8", pb.ExperienceFilter(train_step=7, train_step_last=8)),
        ("step=..8", pb.ExperienceFilter(train_step=1, train_step_last=8)),
        ("step=7..", pb.ExperienceFilter(train_step=7, train_step_last=2**53)),
        ("text=a=b", pb.ExperienceFilter(text="a=b")),
        ("id=x,y", pb.ExperienceFilter(experience_ids=["x", "y"])),
        ("kind=eval", pb.ExperienceFilter(kind=buffer_pb2.ASSIGNMENT_KIND_EVAL)),
        (
            "state=raw,filtered",
            pb.ExperienceFilter(states=[pb.EXPERIENCE_STATE_RAW, pb.EXPERIENCE_STATE_FILTERED]),
        ),
        (
            "finish=length",
            pb.ExperienceFilter(finish_reason=experience_pb2.FINISH_REASON_LENGTH),
        ),
    ],
)
def test_a_condition_means_what_it_says(word: str, meant: pb.ExperienceFilter) -> None:
    assert parse_conditions([word]) == meant


def test_all_conditions_hold_together() -> None:
    assert parse_conditions(["reward=1", "step=3"]) == pb.ExperienceFilter(
        reward_min=1, reward_max=1, train_step=3
    )


@as_subtests(
    ("words", "said"),
    [
        (["reward"], "'reward' is not a condition: write NAME=VALUE"),
        (["rewrad=1"], "there is no condition 'rewrad': did you mean `reward`?"),
        (["reward=x"], "'reward=x': 'x' is not a number"),
        (["reward=.."], "'reward=..': give at least one end of the range"),
        (["reward=nan"], "'reward=nan': 'nan' is not a number"),
        (["version=1.5"], "'version=1.5': '1.5' is not a whole number"),
        (["state=done"], "'state=done': there is no state 'done': one of raw, derived, ready"),
        (["finish=unspecified"], "no sequence ends by 'unspecified': one of stop, length"),
        (["kind=test"], "'kind=test': kind is train or eval"),
        (["step=8..7"], "the range ends before it begins"),
        (["step=1", "step=2"], "the condition step is given twice"),
    ],
)
def test_a_mistake_gets_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_conditions(words)
    assert said in str(error.value)
