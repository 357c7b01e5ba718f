"""What functions ask of the pipeline, and that asking costs no torch."""

import subprocess
import sys

from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage import ADVANTAGE_PATHS, ADVANTAGES
from trinity.algorithm.advantage.needs import NOTHING, Needs, needs, needs_of
from trinity.algorithm.advantage.samples import Advantages, Samples

WHOLE_STEP = Needs(whole_step=True)
LOAD_ALL = """
import sys
sys.modules["torch"] = None
from trinity.algorithm.advantage import ADVANTAGES
for name in ADVANTAGES.names():
    ADVANTAGES.get(name)
"""


@as_subtests(
    ("name", "arguments", "expected"),
    [
        ("grpo", {}, NOTHING),
        ("grpo", {"std_cal_level": "batch"}, WHOLE_STEP),
        ("grpo", {"std_threshold": 0.0, "duplicate_experiences": True}, WHOLE_STEP),
        ("grpo", {"duplicate_experiences": True}, NOTHING),
        ("grpo", {"rank_penalty": 0.0}, Needs(mean_logprobs=True)),
        ("step_wise_grpo", {"std_cal_level": "batch"}, WHOLE_STEP),
        ("step_wise_grpo", {}, NOTHING),
        ("rec", {"drop": "balance"}, NOTHING),
        (
            "gigpo",
            {},
            Needs(step_reward_key="step_reward", state_key="env_state_hash"),
        ),
        (
            "gigpo",
            {"step_reward_key": "r", "env_state_hash_key": "s", "anchors": "all"},
            Needs(whole_step=True, step_reward_key="r", state_key="s"),
        ),
    ],
)
def test_what_a_function_needs_follows_from_its_arguments(
    name: str, arguments: dict[str, str | float | bool], expected: Needs
) -> None:
    assert needs_of(ADVANTAGES.get(name), arguments) == expected


def test_a_function_that_says_nothing_needs_nothing_and_a_users_may_say_more() -> None:
    def silent(samples: Samples) -> Advantages:
        return Advantages(samples.rewards)

    @needs(WHOLE_STEP)
    def own(samples: Samples) -> Advantages:
        return Advantages(samples.rewards)

    assert needs_of(silent, {}) == NOTHING
    assert needs_of(own, {}) == WHOLE_STEP


def test_no_built_in_function_imports_torch() -> None:
    assert len(ADVANTAGE_PATHS) > 5
    subprocess.run([sys.executable, "-c", LOAD_ALL], check=True)
