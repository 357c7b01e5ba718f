"""One experiment with one disturbance, checked at its end."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.checks import Findings, findings
from tests.chaos.hosts.deployment import Deployment
from tests.support.model_free.experiment import (
    experiment_plan,
    final_weights,
    start_experiment,
    wait_until_ended,
)
from trinity.api.v1 import synchronizer_pb2 as pb

Disturbance = Callable[[str], Awaitable[None]]
"""Is given the experiment's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Experiments of the same seed, which must all end in the same weights."""

    deployment: Deployment
    num_steps: int

    async def undisturbed(self) -> str:
        """The weights that it ends with in peace."""

        async def nothing(_: str) -> None:
            return

        return final_weights(await self._run("undisturbed", nothing))

    async def disturbed(self, name: str, disturbance: Disturbance, expected: str) -> Findings:
        """What the checks find; nothing when nothing was lost and nothing done twice."""
        ended = await self._run(name, disturbance)
        return findings(self.deployment.snapshot(ended, expected))

    async def _run(self, name: str, disturbance: Disturbance) -> pb.Experiment:
        plan = experiment_plan(
            self.deployment.root / name,
            name=name,
            buffer={"total_steps": self.num_steps, "keep_steps": 0},
            synchronizer={"sync_offset": 0},
            trainer={"save_interval": 2},
        )
        addresses = self.deployment.addresses
        begun = await start_experiment(addresses.synchronizer, plan, addresses.security)
        await disturbance(begun.id)
        ended = await wait_until_ended(addresses.synchronizer, begun.id, addresses.security)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        return ended
