"""A stage whose rows make no step is refused, wherever they lie."""

from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan


async def test_tasks_that_make_no_step_are_refused_and_more_of_them_are_not(
    buffer: Buffer, tmp_path: Path
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await buffer.open(rollout_plan(tmp_path, num_tasks=2, total_steps=None))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.details() == (
        "stage rft, taskset train: its 2 rows make no train step with `buffer.batch_size: 3` and "
        "`buffer.total_epochs: 1`: give more rows or epochs, a smaller batch, or "
        "`buffer.total_steps`"
    )
    opened = await buffer.open(rollout_plan(tmp_path, num_tasks=4, total_steps=None))
    assert opened.total_train_steps == 1
