"""The base of workflows with several turns."""

from collections.abc import Mapping, Sequence
from typing import Any

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.answers import MatchedAnswers, match_answers
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper
from trinity.workflows.samples import numbers_of
from trinity.workflows.turns import merge_turns
from trinity.workflows.workflow import Workflow

UNUSED_ANSWERS = "unused_answers"
"""Key of a sample's info and metrics: answers of the run that are no message of its transcript."""


class MultiTurnWorkflow(Workflow):
    """Makes samples of a transcript from the model's answers during the run.

        class Guess(MultiTurnWorkflow):
            is_async = True
            shares_loop = True

            async def run_async(self) -> list[Experience]:
                messages: list[Message] = [{"role": "user", "content": self.task.question}]
                for _ in range(5):
                    (turn,) = await self.model.chat_async(messages)
                    messages.append({"role": "assistant", "content": turn.response_text})
                    messages.append({"role": "user", "content": self.hint(turn.response_text)})
                return self.experiences(messages, reward=self.score(messages))

    Only assistant messages that the model generated in this run are trained on, with their original
    tokens. They are found by their prompts (see `answers`). Any other message, also a quoted or
    edited one of an assistant, is context, and answers that are no message are counted in
    `info["unused_answers"]`. All turns form one sample if each prompt continues the tokens before
    it and all were sampled alike, else several (see `turns`), each with the reward.

    `process_messages_to_experience` gives one experience, which the others of the conversation
    follow by themselves; for a transcript without an answer of the model, it is the whole
    transcript, encoded as text.
    """

    keeps_history = True

    def experiences(
        self, messages: Sequence[Message], reward: float, info: JsonObject | None = None
    ) -> list[Experience]:
        """Returns the samples of a transcript; numbers in `info` become metrics too.

        Raises: UserError when the transcript has no answer of the model.
        """
        made = self.model.extract_experience_from_history(clear_history=False)
        matched = _matched(messages, made, self.model)
        if not matched.turns:
            raise UserError(
                f"{type(self).__name__}: none of the assistant's messages in the transcript is "
                "what the model answered in this run: append `experience.response_text` as it is"
            )
        samples = merge_turns(matched.turns)
        for sample in samples:
            sample.reward = reward
            sample.info = dict(info or {})
            if matched.unused:
                sample.info[UNUSED_ANSWERS] = len(matched.unused)
            sample.metrics = {
                name: float(value)
                for name, value in sample.info.items()
                if isinstance(value, int | float)
            }
        return samples

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Takes the number of runs of the next call."""
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    def process_messages_to_experience(
        self,
        messages: Sequence[Any],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; numbers in `info` become metrics too."""
        made = self.model.convert_messages_to_experience(messages)
        return _with_reward(made, reward, info or {}, truncate_status)

    async def process_messages_to_experience_async(
        self,
        messages: Sequence[Any],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; numbers in `info` become metrics too."""
        made = await self.model.convert_messages_to_experience_async(messages)
        return _with_reward(made, reward, info or {}, truncate_status)


def _with_reward(
    made: Experience, reward: float, info: Mapping[str, Any], truncate_status: str | None
) -> Experience:
    """Sets reward, info, metrics and truncation of a finished transcript."""
    made.reward = reward
    made.info = dict(info)
    made.metrics = numbers_of({k: v for k, v in info.items() if isinstance(v, int | float)})
    if truncate_status is not None:
        made.truncate_status = truncate_status
    return made


def _matched(
    messages: Sequence[Message], made: Sequence[Experience], model: ModelWrapper
) -> MatchedAnswers:
    """Returns the answers that became messages of the transcript, and the others.

    If the first prompt was too long, its placeholder is returned instead of answers.
    """
    cut = [answer for answer in made if answer.finish_reason is FinishReason.PROMPT_TRUNCATED]
    rest = [answer for answer in made if answer.finish_reason is not FinishReason.PROMPT_TRUNCATED]
    matched = match_answers(messages, rest, model.was_asked)
    return matched if matched.turns else MatchedAnswers(cut[:1], matched.unused)
