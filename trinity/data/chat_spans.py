"""Finds the assistant's text in rendered conversations, and checks that the text is complete.

template = ChatTemplate(source, {"eos_token": "</s>"})
prompt, answer = find_answer(template, conversation, place=3)
text, spans = find_assistant_spans(template, conversation)
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from jinja2 import Template

from trinity.data.chat_template import (
    NOT_RENDERED,
    ChatRoles,
    render_with_calls,
    template_environment,
)
from trinity.data.conversations import CALLS, functions_of, text_of_content
from trinity.data.rows import row_name
from trinity.errors import UserError

Message = dict[str, object]
Tools = list[object]
Span = tuple[int, int]
"""Start and end of a range of characters; the end is exclusive."""

PLACEHOLDER = "standin4e92d"
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message under which templates look for thoughts."""
END_OF_THOUGHTS = "</think>"
_OPENS_THOUGHT = re.compile(
    r"(?P<tag>[<\[◁](?!/|\w+\|)[^<>\[\]◁▷]*(?:think|thought|reason)[^<>\[\]◁▷]*[>\]▷])(?P<space>\s*)$",
    re.IGNORECASE,
)
_EMPTY_THOUGHT = re.compile(
    r"(?=.*(?:think|thought|reason))\s*<[^<>]*>\w*\s*<[^<>]*>\s*", re.IGNORECASE | re.DOTALL
)
_MAX_TAG = 64
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
OTHER_TEMPLATE = "set `format.chat_template` to one that writes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of a row, or a prefix of them."""

    index: int
    """The row's index."""
    messages: Sequence[Message]
    tools: Tools | None = None

    @property
    def answers(self) -> list[int]:
        """Indexes of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def messages_before(self, place: int) -> "Conversation":
        """Returns the messages before that one."""
        return replace(self, messages=self.messages[:place])

    def with_messages(self, messages: Sequence[Message]) -> "Conversation":
        """Returns the conversation with more messages at its end."""
        return replace(self, messages=[*self.messages, *messages])


class ChatTemplate:
    """A chat template with the variables that are set, special tokens among them.

    template.text(conversation.messages_before(3), with_answer_to_come=True)
    """

    def __init__(
        self, source: Callable[[Conversation], str], variables: Mapping[str, object]
    ) -> None:
        self._source = source
        self._variables = variables

    def text(self, conversation: Conversation, *, with_answer_to_come: bool = False) -> str:
        """Renders the conversation as the model reads it.

        Raises: UserError when the template refuses it.
        """

        def render(messages: Sequence[Message]) -> str:
            return self.render(replace(conversation, messages=messages), with_answer_to_come)

        try:
            source = self._source(conversation)
            return render_with_calls(render, conversation.messages, source)[0]
        except NOT_RENDERED as error:
            raise refused(conversation, error) from error

    def render(self, conversation: Conversation, with_answer_to_come: bool) -> str:
        """Renders it; raises one of NOT_RENDERED."""
        template = _compiled(self._source(conversation))
        return template.render(self._arguments(conversation, with_answer_to_come))

    def asks_for_prompt(self, conversation: Conversation) -> bool:
        """Returns True if the template asks whether an answer is to come."""
        return "add_generation_prompt" in self._source(conversation)

    def marked(self, conversation: Conversation) -> tuple[str, list[Span]] | None:
        """Returns the text if the template marks generated text; transformers finds the spans.

        Raises: UserError when the template refuses the conversation.
        """
        is_marked = _GENERATION_TAG.search(self._source(conversation)) is not None
        return (self.text(conversation), []) if is_marked else None

    def answer_parts(self, conversation: Conversation, *, to_come: bool) -> list[Span]:
        """Returns the spans of the assistant's messages; empty if they cannot be determined.

        That is so if the template writes an answer and tool results in one iteration of its loop.
        """
        source = self._source(conversation)

        def render(messages: Sequence[Message]) -> str:
            return self.render(replace(conversation, messages=messages), to_come)

        text, messages = render_with_calls(render, conversation.messages, source)
        arguments = self._arguments(replace(conversation, messages=messages), to_come)
        parts = _roles_of(source).parts(text, messages, arguments)
        for role in ("assistant", "tool"):
            wanted = sum(message["role"] == role for message in messages)
            if sum(part.role == role for part in parts) != wanted:
                return []
        return [(part.start, part.end) for part in parts if part.role == "assistant"]

    def _arguments(self, conversation: Conversation, to_come: bool) -> dict[str, object]:
        own = {"messages": conversation.messages, "tools": conversation.tools, "documents": None}
        return {**self._variables, **own, "add_generation_prompt": to_come}


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    return template_environment().from_string(source)


@lru_cache(maxsize=8)
def _roles_of(source: str) -> ChatRoles:
    return ChatRoles(source)


def refused(conversation: Conversation, error: Exception) -> UserError:
    """Returns the error of a row that the template raises an exception for."""
    return UserError(
        f"{row_name(conversation.index)}: "
        f"the chat template refuses it ({' '.join(str(error).split())}): "
        "correct its messages, or set `format.chat_template`"
    )


def find_assistant_spans(
    template: ChatTemplate, conversation: Conversation
) -> tuple[str, list[Span]]:
    """Returns the text of a conversation that ends with an answer, and the spans of its answers.

    A template that marks answers by `{% generation %}` is trusted. Otherwise the text is the prompt
    of the last answer, followed by that answer. An earlier answer is the text between the end of
    its prompt and the end of the messages up to it, if both are prefixes of the whole text. They
    are not if the template renders earlier turns differently from the last one: without thoughts,
    or with another end. Then the answer is the output of its iteration of the template's loop,
    without the generation prompt at its start.

    Raises: UserError when answers cannot be separated from the text around them, or the template
        leaves out a part of the conversation.
    """
    if found := template.marked(conversation):
        require_complete(template, conversation, found[0], conversation.answers)
        return found[0], _check_order(found[1], conversation)
    *earlier, last = conversation.answers
    prompt, answer = _find_answer(template, conversation, last)
    text = prompt + answer
    require_complete(template, conversation, text, conversation.answers)
    spans = [*_earlier_spans(template, conversation.messages_before(last), earlier, prompt)]
    return text, _check_order([*spans, (len(prompt), len(text))], conversation)


def find_answer(template: ChatTemplate, conversation: Conversation, place: int) -> tuple[str, str]:
    """Returns the prompt of a conversation and the text of its answer, from message `place` on.

    Where the prompt opens a thought, an answer with thoughts continues it, also if the template
    leaves them out; an answer without stands as the template writes it, without the opened thought.

    Raises: UserError when the two cannot be separated, or the template leaves out a part of them.
    """
    prompt, answer = _find_answer(template, conversation, place)
    answers = range(place, len(conversation.messages))
    require_complete(template, conversation, prompt + answer, answers)
    return prompt, answer


def _find_answer(template: ChatTemplate, conversation: Conversation, place: int) -> tuple[str, str]:
    before = template.text(conversation.messages_before(place), with_answer_to_come=True)
    prompt, answer = _split(template, conversation, place, before)
    thoughts, _ = split_thoughts(conversation.messages[-1])
    opened = _opened_thought(before)
    if not thoughts or opened is None or place < len(conversation.messages) - 1:
        return prompt, answer
    is_opened_twice = answer.lstrip().startswith(opened["tag"])
    if prompt == before and _is_in(thoughts, answer) and not is_opened_twice:
        return prompt, answer
    closing, space = _closing(opened["tag"]), opened["space"]
    spoken = (answer.partition(closing)[2] or answer).lstrip("\n")
    return before, f"{thoughts}{space}{closing}{2 * space}{spoken}"


def _split(
    template: ChatTemplate, conversation: Conversation, place: int, before: str
) -> tuple[str, str]:
    whole = template.text(conversation)
    _require_end(template, conversation, before, whole)
    if found := _continued(before, whole):
        return found
    prompt = conversation.messages_before(place)
    opening = _opening(template, prompt, before)
    if parts := template.answer_parts(conversation, to_come=False):
        start, _ = parts[len(prompt.answers)]
        if found := _continued(opening, whole[start:]):
            return before.removesuffix(opening) + found[0], found[1]
    raise _ambiguous_answer_error(conversation, f"the answer in message {place}")


def _require_end(
    template: ChatTemplate, conversation: Conversation, before: str, whole: str
) -> None:
    """Raises UserError for a template that begins another answer behind the last one.

    One that does not ask whether an answer is to come may.
    """
    if template.asks_for_prompt(conversation):
        return
    ends = [end for _, end in template.answer_parts(conversation, to_come=False)]
    behind = whole[max(ends) :] if ends else ""
    if behind.strip() and before.endswith(behind):
        raise UserError(
            f"{row_name(conversation.index)}: "
            f"the chat template begins another answer behind the last "
            f"one (`{behind.strip():.60}`), which would be trained on: write it under "
            "`{% if add_generation_prompt %}`, and set `format.chat_template` to it"
        )


def _continued(before: str, whole: str) -> tuple[str, str] | None:
    """Returns a prompt and its answer; None if the whole text begins differently.

    An empty thought at the end of the prompt may be missing there. A thought that the prompt opens
    may be missing, or be closed already.
    """
    if whole.startswith(before):
        return before, whole[len(before) :]
    length = _shared(before, whole)
    if _EMPTY_THOUGHT.fullmatch(before, length):
        return before, whole[length:]
    opened = _opened_thought(before)
    if opened is None or length < opened.start("tag"):
        return None
    length = min(length, opened.end("tag"))
    length += _closing_length(before, length, whole)
    return whole[:length], whole[length:]


def _closing_length(opening: str, length: int, written: str) -> int:
    """Returns the length of a closing tag at this place for a thought opened in the prompt."""
    opened = _opened_thought(opening)
    if opened is None or length > opened.start("tag"):
        return 0
    closing = _closing(opened["tag"])
    return len(closing) if written.startswith(closing, length) else 0


def _opened_thought(prompt: str) -> re.Match[str] | None:
    return _OPENS_THOUGHT.search(prompt, max(0, len(prompt) - _MAX_TAG))


def _closing(tag: str) -> str:
    return f"{tag[0]}/{tag[1:]}"


def _opening(template: ChatTemplate, prompt: Conversation, before: str) -> str:
    """Returns the generation prompt: the end of a prompt after which the assistant begins."""
    return before[_shared(before, template.text(prompt)) :]


def _shared(text: str, other: str) -> int:
    """Returns the length of two texts' common prefix, without an incomplete tag at its end."""
    pairs = zip(text, other, strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if length in (len(text), len(other)):
        return length
    start = max(0, length - _MAX_TAG)
    tag = max(text.rfind("<", start, length), text.rfind("[", start, length))
    is_open = tag >= 0 and not set(">]") & set(text[tag:length])
    return tag if is_open else length


def _earlier_spans(
    template: ChatTemplate, prompt: Conversation, places: Sequence[int], text: str
) -> Iterator[Span]:
    """Yields the spans of answers in the prompt of the last one."""
    parts: list[Span] = []
    for number, place in enumerate(places):
        before = template.text(prompt.messages_before(place), with_answer_to_come=True)
        through = template.text(prompt.messages_before(place + 1))
        if through.startswith(before) and text.startswith(through):
            yield len(before), len(through)
            continue
        if not parts:
            parts = template.answer_parts(prompt, to_come=True)
        if not parts:
            raise _ambiguous_answer_error(prompt, f"the answer in message {place}")
        start, end = parts[number]
        opening = _opening(template, prompt.messages_before(place), before)
        written = text[start:end]
        length = _shared(opening, written)
        if not length and not text[:start].endswith(opening):
            raise _ambiguous_answer_error(prompt, f"the answer in message {place}")
        yield start + length + _closing_length(opening, length, written), end


def _check_order(spans: list[Span], conversation: Conversation) -> list[Span]:
    ends = [0, *(end for _, end in spans)]
    if any(start < end for (start, _), end in zip(spans, ends, strict=False)):
        raise _ambiguous_answer_error(conversation, "one answer")
    return spans


def _ambiguous_answer_error(conversation: Conversation, what: str) -> UserError:
    return UserError(
        f"{row_name(conversation.index)}: "
        f"{what} cannot be separated from the text around it, because the chat template renders "
        "that text differently after the answer is added: set `format.enable_thinking` as it was "
        "when the answers were written, or `format.chat_template` to a template with "
        "{% generation %} around the assistant's text"
    )


def split_thoughts(message: Message) -> tuple[str, str]:
    """Returns the thoughts of an answer, from their key or before `</think>`, and the rest."""
    said = message.get("content")
    head, mark, rest = str(said or "").rpartition(END_OF_THOUGHTS)
    own = next((str(message[key]) for key in THOUGHTS if message.get(key)), "")
    thoughts = own or (head.rpartition("<think>")[2] if mark else "")
    return thoughts.strip(), rest.strip()


def require_complete(
    template: ChatTemplate, conversation: Conversation, text: str, answers: Sequence[int]
) -> None:
    """Checks that a rendered conversation has all its calls, tools and texts.

    Of answers, the text is looked for in those of these places. Thoughts of earlier ones may be
    left out.

    Raises: UserError that names the missing part.
    """
    _require_calls(template, conversation)
    thoughts, _ = split_thoughts(conversation.messages[-1])
    if not _is_in(thoughts, text):
        raise _left_out(
            conversation,
            f"the thoughts of message {len(conversation.messages) - 1}",
            "switch thinking on (`enable_thinking`, `model.chat_template_kwargs`), or leave them "
            "out of the rows",
        )
    for place, message in enumerate(conversation.messages):
        is_answer = message["role"] == "assistant"
        _, said = (
            split_thoughts(message) if is_answer else ("", text_of_content(message.get("content")))
        )
        if (is_answer and place not in answers) or _is_in(said.strip(), text):
            continue
        through = conversation.messages_before(place + 1) if is_answer else conversation
        if not _writes_content(template, through, place):
            raise _left_out(conversation, f"the text of message {place}, by `{message['role']}`")


def _require_calls(template: ChatTemplate, conversation: Conversation) -> None:
    """Raises UserError for tools and calls that are in a row and not in its text.

    Names may stand elsewhere in the text, so others stand in for them.
    """
    others: list[tuple[str, str]] = []

    def renamed(given: object, what: str) -> list[object]:
        changed: list[object] = []
        for call, function in functions_of({CALLS: given}):
            others.append((what, str(function.get("name"))))
            named = {**function, "name": f"{PLACEHOLDER}x{len(others)}x"}
            changed.append({**call, "function": named} if "function" in call else named)
        return changed

    tools = renamed(conversation.tools, "`tools`")
    messages = [
        {**message, CALLS: renamed(message[CALLS], f"`tool_calls` of message {place}")}
        if message.get(CALLS)
        else message
        for place, message in enumerate(conversation.messages)
    ]
    if not others:
        return
    try:
        text = template.text(replace(conversation, messages=messages, tools=tools or None))
    except UserError:  # it looks at the names
        return
    told = " ".join(str(message.get("content")) for message in messages)
    for number, (what, name) in enumerate(others, 1):
        is_told = what == "`tools`" and name in told
        if f"{PLACEHOLDER}x{number}x" not in text and not is_told:
            otherwise = "or leave out `format.tools_key`" if what == "`tools`" else ""
            raise _left_out(conversation, f"{what} (`{name}`)", otherwise)


def _writes_content(template: ChatTemplate, conversation: Conversation, place: int) -> bool:
    """Returns True if a message's text affects the rendered text, even if it is not verbatim."""
    other = {**conversation.messages[place], "content": PLACEHOLDER}
    messages = [*conversation.messages[:place], other, *conversation.messages[place + 1 :]]
    try:
        return PLACEHOLDER in template.text(replace(conversation, messages=messages))
    except UserError:  # it wants another text
        return True


def _is_in(said: str, text: str) -> bool:
    """Returns True for a text that stands in another, as it is or as JSON writes it."""
    return said in text or any(
        json.dumps(said, ensure_ascii=ascii_only)[1:-1] in text for ascii_only in (False, True)
    )


def _left_out(conversation: Conversation, what: str, otherwise: str = "") -> UserError:
    return UserError(
        f"{row_name(conversation.index)}: "
        f"the chat template leaves out {what}, so that the row would be "
        f"trained without: {OTHER_TEMPLATE}, {otherwise or 'or leave the row out'}"
    )
