"""Plays environments of OpenEnv: the model's answers are actions."""

import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from trinity.types import Experience, FinishReason, JsonValue
from trinity.user_code.hubs.process import HubFailed, HubProcess
from trinity.workflows.hub_workflow import HubWorkflow
from trinity.workflows.messages import Message
from trinity.workflows.samples import rewarded
from trinity.workflows.turns import merge_turns
from trinity.workflows.workflow import Arguments


class OpenEnvWorkflow(HubWorkflow):
    """Plays an episode of an environment; the reward is the sum over its steps.

    `path` is a file with an `app`, the folder of an environment (`openenv.yaml`), or the address
    where one runs. A task is a seed, of which there are `num_tasks` from `first_seed` on, or
    arguments of `reset` from the list `resets`. The model sees each observation as a user's
    message: its only field as text, else all as JSON. An answer is an action: a JSON object, or the
    value of the only field. One that is no action ends the episode, as `max_steps` answers do. The
    taskset's `format.system_prompt` comes first; without it the schema of an action.
    """

    hub = "openenv"
    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "num_tasks": None,
        "first_seed": 0,
        "resets": None,
        "max_steps": 20,
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns one experience, or several if turns do not continue one another.

        Raises: UserError, HubFailed.
        """
        max_steps = Arguments(self).positive_int("max_steps")
        session = uuid.uuid4().hex
        async with self.asked_hub() as hub:
            try:
                return await self._play(hub, session, max_steps)
            finally:
                with contextlib.suppress(HubFailed):
                    await hub.call("end", session=session)

    async def _play(self, hub: HubProcess, session: str, max_steps: int) -> list[Experience]:
        system = self.task.system_prompt
        if system is None:
            schema = json.dumps(await hub.call("schema"))
            system = f"Answer with a JSON object of this schema: {schema}"
        messages = [Message(role="system", content=system)] if system else []
        seen = _seen(await hub.call("reset", session=session, row=self.task.raw_task))
        reward, num_steps = seen["reward"], 0
        while not seen["is_done"] and num_steps < max_steps:
            messages.append(Message(role="user", content=seen["text"]))
            (turn,) = await self.model.chat_async(messages)
            if turn.finish_reason is FinishReason.PROMPT_TRUNCATED:
                break
            messages.append(Message(role="assistant", content=turn.response_text))
            seen = _seen(await hub.call("step", session=session, answer=turn.response_text))
            reward += seen["reward"]
            num_steps += 1
        turns = self.model.extract_experience_from_history()
        if not turns:
            raise HubFailed(f"openenv: the episode of {self.task.source} was over at its `reset`")
        metrics = {"env_steps": float(num_steps), "no_action": float(not seen["is_action"])}
        return rewarded(merge_turns(turns), {"openenv": reward}, metrics)


def _seen(answer: Any) -> dict[str, Any]:
    """Returns what an episode shows. Raises: HubFailed unless it is that."""
    match answer:
        case {
            "text": str(),
            "reward": int() | float() as reward,
            "is_done": bool(),
            "is_action": bool(),
        } if abs(reward) < float("inf"):
            return dict(answer)
    raise HubFailed(f"openenv answered {answer!r:.80}, which is no observation")
