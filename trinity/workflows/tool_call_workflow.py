"""The model must reason, then call the right tools with the right arguments."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import ClassVar

from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.types import Experience, JsonValue
from trinity.workflows.messages import Message
from trinity.workflows.workflow import Workflow

FORM = """\
You may call these tools:
<tools>
{tools}
</tools>
First think between <think> and </think>. Then give all calls as one JSON list:
<tool_call>
[{{"name": "a tool", "arguments": {{"an argument": "its value"}}}}]
</tool_call>"""
ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "user",
    "tool": "user",
    "system": "system",
}
REPLY = re.compile(
    r"\s*<think>(?:(?!</?think>|</?tool_call>).)*</think>"
    r"\s*<tool_call>((?:(?!</?think>|</?tool_call>).)*)</tool_call>\s*",
    re.DOTALL,
)


class ToolCallWorkflow(Workflow):
    """Reward 1 for a reasoning block, then a block with exactly the calls of `answer`, else 0.

    Columns: `tools`, `raw_system` (text before the tools), `conversations` (messages with `from`
    and `value`, or `role` and `content`) and `answer` (a list of `name` and `arguments`), each as
    JSON or as its text. The order of the calls does not count.
    """

    is_async = True
    shares_loop = True
    known_args: ClassVar[frozenset[str] | None] = frozenset()

    async def run_async(self) -> list[Experience]:
        """Returns one experience with the metric `accuracy`."""
        wanted = count_calls(self._json("answer"))
        if wanted is None:
            raise UserError(
                f"{self._row}: its column `answer` is no list of calls: give name and "
                "arguments of each"
            )
        experiences = await self.model.chat_async(self.messages())
        for experience in experiences:
            reward = float(parse_calls(experience.response_text) == wanted)
            experience.reward = reward
            experience.reward_parts = experience.metrics = {"accuracy": reward}
        return experiences

    def messages(self) -> list[Message]:
        """Returns the system prompt with the tools, and the conversation so far."""
        tools = json.dumps(self._json("tools"), ensure_ascii=False)
        before = str(self.task.raw_task.get("raw_system") or "").strip()
        system = "\n\n".join(text for text in (before, FORM.format(tools=tools)) if text)
        turns = self._json("conversations")
        if not isinstance(turns, list):
            raise UserError(f"{self._row}: its column `conversations` is no list of messages")
        return [Message(role="system", content=system), *(self._message(turn) for turn in turns)]

    def _message(self, turn: JsonValue) -> Message:
        if not isinstance(turn, dict):
            raise UserError(f"{self._row}: {turn!r} in `conversations` is no message")
        speaker = str(turn.get("role") or turn.get("from"))
        text = turn.get("content", turn.get("value"))
        if speaker not in ROLES or text is None:
            raise UserError(
                f"{self._row}: a message in `conversations` has `from` {speaker!r} and `value` "
                f"{text!r}: give one of {', '.join(ROLES)}, and a text"
            )
        return Message(role=ROLES[speaker], content=str(text))

    def _json(self, column: str) -> JsonValue:
        value = self.task.column(column)
        if not isinstance(value, str):
            return value
        try:
            parsed: JsonValue = json.loads(value)
        except ValueError as error:
            raise UserError(f"{self._row}: its column `{column}` is no JSON: {error}") from error
        return parsed

    @property
    def _row(self) -> str:
        return f"taskset {self.task.taskset!r}, {row_name(self.task.row)}"


def parse_calls(reply: str) -> Counter[str] | None:
    """Returns the calls of a reply in the required format, else None."""
    found = REPLY.fullmatch(reply)
    if found is None:
        return None
    try:
        return count_calls(json.loads(found[1]))
    except (ValueError, RecursionError):
        return None


def count_calls(value: JsonValue) -> Counter[str] | None:
    """Counts the calls by name and arguments; None if they are not calls."""
    calls = [value] if isinstance(value, dict) else value
    if not isinstance(calls, list):
        return None
    texts = list(_texts(calls))
    return None if None in texts else Counter(text for text in texts if text is not None)


def _texts(calls: Iterable[JsonValue]) -> Iterable[str | None]:
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            yield None
        else:
            yield json.dumps([call["name"], call.get("arguments") or {}], sort_keys=True)
