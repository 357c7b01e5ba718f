"""Explorers and trainers that are nobody's own spread over the experiments that run."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.together.conftest import EXPLORER, Shared
from tests.integration.together.further import further
from tests.integration.together.seen import members, until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_second_pair_takes_the_experiment_that_nobody_works_on(
    tmp_path: Path, shared: Shared, calm_weights: str
) -> None:
    plans = [experiment_plan(tmp_path, name=name) for name in ("first", "second")]
    at = shared.stack.addresses

    async def at_work() -> set[tuple[str, str]]:
        return {
            (address, member.experiment_id)
            for address, member in (await members(at.synchronizer)).items()
            if member.experiment_id
        }

    async def first_pair_works() -> bool:
        own = started[0].id  # they may still show what they had before
        return await at_work() == {(at.explorer, own), (at.trainer, own)}

    async def all_work() -> bool:
        return len(await at_work()) == 4

    with ExitStack() as others:
        with shared.held():
            started = [await start_experiment(at.synchronizer, plans[0])]
            await until(first_pair_works)
            started.append(await start_experiment(at.synchronizer, plans[1]))
            explorer = others.enter_context(further("explorer", shared.job_dir, at, EXPLORER))
            trainer = others.enter_context(further("trainer", shared.job_dir, at))
            await until(all_work)
            assert await at_work() == {
                (at.explorer, started[0].id),
                (at.trainer, started[0].id),
                (explorer.address, started[1].id),
                (trainer.address, started[1].id),
            }
        ended = [await wait_until_ended(at.synchronizer, one.id) for one in started]
    assert [weights_of(one) for one in ended] == [calm_weights, calm_weights]
