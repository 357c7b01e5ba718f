"""The base of workflows that talk with the model in several turns."""

from collections.abc import Sequence

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.messages import Message
from trinity.workflows.transcript import common_places
from trinity.workflows.turns import joined
from trinity.workflows.workflow import Workflow

RESPONSE_TRUNCATED = "response_truncated"


class MultiTurnWorkflow(Workflow):
    """Makes samples of a transcript, out of what the model gave while it was written.

        class Guess(MultiTurnWorkflow):
            is_async = True

            async def run_async(self) -> list[Experience]:
                messages: list[Message] = [{"role": "user", "content": self.task.task_desc}]
                for _ in range(5):
                    (turn,) = await self.model.chat_async(messages)
                    messages.append({"role": "assistant", "content": turn.response_text})
                    messages.append({"role": "user", "content": self.hint(turn.response_text)})
                return self.experiences(messages, reward=self.score(messages))

    Trained are the assistant's messages that the model answered in this run, with the tokens that
    it answered them with. Any other message, also of an assistant that is quoted or edited, is
    context. All turns together are one sample where each prompt goes on from the tokens before,
    else several (see `turns`), each with the reward.
    """

    keeps_history = True

    def experiences(
        self, messages: Sequence[Message], reward: float, info: JsonObject | None = None
    ) -> list[Experience]:
        """The samples of a transcript; numbers of `info` are metrics too.

        Raises: UserError when no message of it is an answer of the model.
        """
        turns = _turns(messages, self.model.extract_experience_from_history(clear_history=False))
        if not turns:
            raise UserError(
                f"{type(self).__name__}: none of the assistant's messages in the transcript is "
                "what the model answered in this run: append `experience.response_text` as it is"
            )
        made = joined(turns)
        for one in made:
            one.reward = reward
            one.info = dict(info or {})
            one.metrics = {
                name: float(value)
                for name, value in one.info.items()
                if isinstance(value, int | float)
            }
        return made

    def process_messages_to_experience(
        self,
        messages: Sequence[Message],
        reward: float,
        info: JsonObject | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """The one sample of a transcript; of a conversation that was cut short the reward is 0.

        Raises: UserError when its turns are several samples.
        """
        if truncate_status == RESPONSE_TRUNCATED:
            reward = 0.0
        made = self.experiences(messages, reward, info)
        if len(made) > 1:
            raise UserError(
                f"{type(self).__name__}: the transcript is {len(made)} samples, as the chat "
                "template does not repeat the model's earlier tokens as they were: return the "
                "list of `self.experiences(messages, reward)` in place of one experience"
            )
        return made[0]

    async def process_messages_to_experience_async(
        self,
        messages: Sequence[Message],
        reward: float,
        info: JsonObject | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """The same: no engine is asked again."""
        return self.process_messages_to_experience(messages, reward, info, truncate_status)


def _turns(messages: Sequence[Message], made: Sequence[Experience]) -> list[Experience]:
    """The answers that became messages of the transcript, in its order.

    Where none did because the first prompt was too long, the stand-in for it. White space around
    an answer is often taken off.
    """
    cut = [one for one in made if one.finish_reason is FinishReason.PROMPT_TRUNCATED]
    rest = [one for one in made if one.finish_reason is not FinishReason.PROMPT_TRUNCATED]
    told = [one["content"].strip() for one in messages if one["role"] == "assistant"]
    places = common_places(told, [one.response_text.strip() for one in rest])
    return [rest[place] for place in places] or cut[:1]
