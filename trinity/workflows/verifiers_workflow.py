"""Plays environments of verifiers: its harness asks at the address of the run."""

from collections.abc import Mapping
from typing import ClassVar

from trinity.errors import UserError
from trinity.types import Experience, JsonValue
from trinity.user_code.hubs.process import HubFailed, numbers, texts
from trinity.workflows.answers import close_session
from trinity.workflows.hub_workflow import HubWorkflow
from trinity.workflows.samples import rewarded
from trinity.workflows.workflow import Arguments


class VerifiersWorkflow(HubWorkflow):
    """Plays an environment of verifiers; its tasks, rewards and metrics are the environment's.

    `path` is a file or folder with a task set, or the name of one that is installed in the hub's
    environment (`trinity setup hub verifiers`). `env` is the environment's configuration as
    verifiers has it, such as `agent.harness.id`; agents run in processes here unless it says
    otherwise. `num_tasks` takes the first tasks only. After `max_calls` answers the model answers
    no more.
    """

    hub = "verifiers"
    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "env": {},
        "num_tasks": None,
        "max_calls": 100,
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns a sample for each path of calls that continue one another.

        Raises: UserError for an environment that asked nothing; HubFailed for one that failed.
        """
        self.model.max_answers = Arguments(self).positive_int("max_calls")
        access = self.model.api_access
        async with self.asked_hub() as hub:
            played = await hub.call(
                "play",
                row=self.task.raw_task,
                address=access.address,
                key=access.key,
                model=access.model_path,
            )
        if not isinstance(played, dict) or not isinstance(played.get("is_ok"), bool):
            raise HubFailed(f"verifiers answered {played!r:.80}, which is no episode")
        failures = texts(played.get("failures"))
        turns = self.model.session_turns
        if not played["is_ok"]:
            raise HubFailed(f"verifiers: {'; '.join(failures)[:1000] or 'the episode failed'}")
        if played.get("num_agents") != 1:
            raise HubFailed("verifiers played several agents, and a run trains one")
        if not turns:
            raise UserError(
                f"the harness of {self.task.taskset!r} asked the model nothing at the address of "
                "the run: let it ask at the endpoint that verifiers gives to `launch`"
            )
        closed = close_session(turns)
        metrics = {**numbers(played.get("metrics")), **closed.counts}
        return rewarded(closed.samples, numbers(played.get("rewards")), metrics)
