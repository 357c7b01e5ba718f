"""With retention on, contents do not grow with the steps; the long run: benchmarks/growth.py."""

from pathlib import Path

import pytest

from benchmarks.growth import BATCH_SIZE, REPEAT_TIMES, SAVE_INTERVAL, grow, plan_of

STEPS = 40
pytestmark = pytest.mark.timeout(300)


async def test_contents_stay_as_they_are_while_steps_go_by(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, steps=STEPS, keep_steps=0)
    rows_a_step = BATCH_SIZE * REPEAT_TIMES
    looks = await grow(plan, steps=STEPS, segment_rows=rows_a_step)
    assert [one.step for one in looks] == list(range(4, STEPS + 1, 4))
    a_step = looks[0].contents / looks[0].step
    # Two checkpoints are kept, the steps since the older one, and what comes next.
    most = (3 * SAVE_INTERVAL + 2) * a_step
    assert max(one.contents for one in looks) < most < STEPS * a_step / 2
    assert max(one.num_partitions for one in looks) < STEPS / 2
