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
            60,
        ),
    ],
)
def test_rewards_that_come_later_have_their_time(buffer: dict[str, object], seconds: int) -> None:
    assert stage(buffer=buffer).experience_buffer.max_read_timeout == seconds
