"""The base of workflows with several turns."""

from collections.abc import Sequence

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.messages import Message
from trinity.workflows.turns import lcs_indices, merge_turns
from trinity.workflows.workflow import Workflow

RESPONSE_TRUNCATED = "response_truncated"


class MultiTurnWorkflow(Workflow):
    """Makes samples of a transcript from the model's answers during the run.

        class Guess(MultiTurnWorkflow):
            is_async = True

            async def run_async(self) -> list[Experience]:
                messages: list[Message] = [{"role": "user", "content": self.task.task_desc}]
                for _ in range(5):
                    (turn,) = await self.model.chat_async(messages)
                    messages.append({"role": "assistant", "content": turn.response_text})
                    messages.append({"role": "user", "content": self.hint(turn.response_text)})
                return self.experiences(messages, reward=self.score(messages))

    Only assistant messages that the model generated in this run are trained on, with their
    original tokens. Any other message, also a quoted or edited one of an assistant, is context.
    All turns form one sample if each prompt continues the tokens before it and all were sampled
    alike, else several (see `turns`), each with the reward.
    """

    keeps_history = True

    def experiences(
        self, messages: Sequence[Message], reward: float, info: JsonObject | None = None
    ) -> list[Experience]:
        """Returns the samples of a transcript; numbers in `info` become metrics too.

        Raises: UserError when none of its messages is an answer of the model.
        """
        turns = _turns(messages, self.model.extract_experience_from_history(clear_history=False))
        if not turns:
            raise UserError(
                f"{type(self).__name__}: none of the assistant's messages in the transcript is "
                "what the model answered in this run: append `experience.response_text` as it is"
            )
        samples = merge_turns(turns)
        for sample in samples:
            sample.reward = reward
            sample.info = dict(info or {})
            sample.metrics = {
                name: float(value)
                for name, value in sample.info.items()
                if isinstance(value, int | float)
            }
        return samples

    def process_messages_to_experience(
        self,
        messages: Sequence[Message],
        reward: float,
        info: JsonObject | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the only sample of a transcript; the reward of a truncated conversation is 0.

        Raises: UserError when its turns are several samples.
        """
        if truncate_status == RESPONSE_TRUNCATED:
            reward = 0.0
        samples = self.experiences(messages, reward, info)
        if len(samples) > 1:
            raise UserError(
                f"{type(self).__name__}: the transcript is {len(samples)} samples, as the chat "
                "template does not repeat the model's earlier tokens as they were, or as turns "
                "were sampled differently: return the list of `self.experiences(messages, reward)` "
                "in place of one experience"
            )
        return samples[0]

    async def process_messages_to_experience_async(
        self,
        messages: Sequence[Message],
        reward: float,
        info: JsonObject | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Does the same as `process_messages_to_experience`; it does not call the engine."""
        return self.process_messages_to_experience(messages, reward, info, truncate_status)


def _turns(messages: Sequence[Message], made: Sequence[Experience]) -> list[Experience]:
    """Returns the answers that became messages of the transcript, in its order.

    If there are none because the first prompt was too long, its placeholder is returned. Texts are
    compared without surrounding white space, which is often stripped.
    """
    cut = [answer for answer in made if answer.finish_reason is FinishReason.PROMPT_TRUNCATED]
    rest = [answer for answer in made if answer.finish_reason is not FinishReason.PROMPT_TRUNCATED]
    # A message that only calls tools has no content.
    answers = [message for message in messages if message["role"] == "assistant"]
    quoted = [(message["content"] or "").strip() for message in answers]
    indices = lcs_indices(quoted, [answer.response_text.strip() for answer in rest])
    return [rest[index] for index in indices] or cut[:1]
