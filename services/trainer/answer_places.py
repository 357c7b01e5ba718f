"""Finds the spans of the assistant's answers in the text of a whole conversation."""

from services.trainer.chat_template import STAND_IN, ChatTemplate, Conversation, Span
from trinity.errors import UserError


def find_answers(template: ChatTemplate, conversation: Conversation) -> tuple[str, list[Span]]:
    """Returns the text of a conversation that ends with an answer, and the spans of its answers.

    A template that marks answers by `{% generation %}` is trusted. Otherwise an answer begins where
    the prompt that the model is given ends, and reaches to the end of the text of the messages up
    to it; this requires that both are prefixes of the whole text. They are not where the template
    writes an earlier turn differently from the last one, as templates do that drop the thoughts of
    earlier turns. An earlier answer is then the part of the text that changes when a stand-in
    replaces it: the text before and after it belongs to the other messages, in any form. Text with
    which the template closes a turn belongs to the answer, where it follows it.

    Raises: UserError when the template does not let answers be told from the text around them.
    """
    if template.marks_answers(conversation):
        whole, spans = template.marked(conversation)
        return whole, _in_order(spans, conversation)
    whole = template.text(conversation)
    spans = [_span(template, conversation, place, whole) for place in conversation.answers]
    return whole, _in_order(spans, conversation)


def _span(template: ChatTemplate, conversation: Conversation, place: int, whole: str) -> Span:
    before = template.text(conversation.until(place), with_answer_to_come=True)
    through = template.text(conversation.until(place + 1))
    if through.startswith(before) and whole.startswith(through):
        return len(before), len(through)
    is_last = place == len(conversation.messages) - 1
    span = None if is_last else _what_changes(template, conversation, place, whole)
    if span is None:
        raise _inseparable(conversation, f"the answer in message {place}")
    return span


def _what_changes(
    template: ChatTemplate, conversation: Conversation, place: int, whole: str
) -> Span | None:
    try:
        parts = template.text(conversation.with_stand_in(place)).split(STAND_IN)
        as_last = template.text(conversation.until(place + 1).with_stand_in(place)).split(STAND_IN)
    except UserError:  # e.g. the template wants a tool call before a tool's answer
        return None
    if len(parts) != 2 or len(as_last) != 2:
        return None
    before, after = parts
    start, end = len(before), len(whole) - len(after)
    if start > end or not (whole.startswith(before) and whole.endswith(after)):
        return None
    closing = as_last[1].rstrip()
    return start, end + len(closing) if after.startswith(closing) else end


def _in_order(spans: list[Span], conversation: Conversation) -> list[Span]:
    ends = [0, *(end for _, end in spans)]
    if any(start < end for (start, _), end in zip(spans, ends, strict=False)):
        raise _inseparable(conversation, "one answer")
    return spans


def _inseparable(conversation: Conversation, what: str) -> UserError:
    return UserError(
        f"row {conversation.index}: {what} cannot be told from the text around it, as the chat "
        "template writes that text differently once the answer is there: set "
        "`format.enable_thinking` as the answers were written, or `format.chat_template` to a "
        "template with {% generation %} around what the assistant writes"
    )
