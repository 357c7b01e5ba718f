"""How long the trainer waits for a batch, where rewards may come later."""

import pytest

from tests.unit.config.builders import stage

DAY = 24 * 3600


@pytest.mark.parametrize(
    ("buffer", "seconds"),
    [
        ({}, 1800),
        ({"await_feedback": True}, 30 * DAY + 1800),
        ({"await_feedback": True, "feedback_timeout": DAY}, DAY + 1800),
        (
            {
                "await_feedback": True,
                "trainer_input": {"experience_buffer": {"max_read_timeout": 60}},
            },
            30 * DAY + 1800,
        ),
        ({"trainer_input": {"experience_buffer": {"max_read_timeout": 3600}}}, 3600),
    ],
)
def test_rewards_that_come_later_have_their_time(buffer: dict[str, object], seconds: int) -> None:
    assert stage(buffer=buffer).experience_buffer.max_read_timeout == seconds


def test_an_incomplete_batch_is_trained_only_where_the_file_says_how_long_to_wait() -> None:
    waits = {"trainer_input": {"experience_buffer": {"max_read_timeout": 60}}}
    assert stage(buffer=waits).experience_buffer.incomplete_after == 60
    assert stage().experience_buffer.incomplete_after is None, "no batch depends on the clock"
    exploring = stage(mode="explore", buffer=waits)
    assert exploring.experience_buffer.incomplete_after is None, "nothing is trained"
