"""Parts of pages that are drawn: token strips, conversations and lanes. Texts are untrusted."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import streamlit as st

from trinity.studio.conversation import PREVIEW_CHARS, ConversationTurn, is_folded
from trinity.studio.experiences import ShownMessage
from trinity.studio.lanes import Lanes, ShownSpan
from trinity.studio.pictures import Thumbnail
from trinity.studio.plain_text import beginning_of, one_line, plain_text, seconds_text
from trinity.studio.tokens import ShownToken, TokenColor, TokenStrip
from trinity.studio.widgets import component
from trinity.types import BlobRef

TOKENS_HTML = (
    '<div class="tokens"><div class="strip" role="listbox" aria-orientation="horizontal"></div>'
    '<dl class="facts" aria-live="polite"></dl></div>'
)
START_WORDS = {"now": "ago"}
BEFORE = "before"
LANES_HTML = (
    '<div class="lanes"><div class="rows" role="grid"></div>'
    '<dl class="facts" aria-live="polite"></dl></div>'
)
CONVERSATION_HTML = '<div class="conversation"></div>'


def show_tokens(name: str, strip: TokenStrip, color: str, *, key: str) -> None:
    """Shows the tokens of a response."""
    palette = color if color in (TokenColor.SURPRISE, TokenColor.AGE) else TokenColor.SIGNED.value
    data = {
        "name": name,
        "palette": palette,
        "dark": st.context.theme.type == "dark",
        "tokens": [_token(token) for token in strip.tokens],
    }
    _tokens()(data=data, key=key)


def show_conversation(
    name: str,
    turns: Sequence[ConversationTurn],
    pictures: Mapping[BlobRef, Thumbnail],
    *,
    key: str,
) -> None:
    """Shows the messages of turns by their roles; long ones are opened by a click or by Enter."""
    data = {
        "name": name,
        "dark": st.context.theme.type == "dark",
        "turns": [
            {
                "head": one_line(turn.head),
                "note": one_line(turn.note),
                "messages": [_message(message, pictures) for message in turn.messages],
            }
            for turn in turns
        ],
    }
    _conversation()(data=data, key=key)


def show_lanes(name: str, lanes: Lanes, *, key: str, empty: str, end: str = "now") -> None:
    """Shows what members did and waited for, over the same time, up to `end`."""
    data = {
        "name": name,
        "dark": st.context.theme.type == "dark",
        "start": f"{seconds_text(lanes.window_seconds)} {START_WORDS.get(end, BEFORE)}",
        "end": end,
        "empty": empty,
        "lanes": [
            {"name": lane.name, "spans": [_span(span) for span in lane.spans]}
            for lane in lanes.lanes
        ],
    }
    _lanes()(data=data, key=key)


def _token(token: ShownToken) -> dict[str, object]:
    return {
        "text": token.text,
        "part": token.is_part,
        "mask": token.is_chosen,
        "level": token.level,
        "clipped": token.is_clipped,
        "label": token.label,
        "breaks": "↵" in token.text,
        "facts": [list(fact) for fact in token.facts],
    }


def _message(message: ShownMessage, pictures: Mapping[BlobRef, Thumbnail]) -> dict[str, object]:
    return {
        "role": one_line(message.role),
        "tokens": f"{message.num_tokens:,} tokens",
        "text": plain_text(message.text),
        "preview": one_line(beginning_of(message.text, PREVIEW_CHARS))
        if is_folded(message)
        else "",
        "folded": is_folded(message),
        "images": [asdict(pictures[own]) for own in message.images if own in pictures],
    }


def _span(span: ShownSpan) -> dict[str, object]:
    return {
        "id": span.id,
        "wait": span.is_wait,
        "left": span.left,
        "width": span.width,
        "label": span.label,
        "facts": [list(fact) for fact in span.facts],
    }


@functools.cache
def _conversation() -> Callable[..., object]:
    return component("trinity_conversation", "conversation", CONVERSATION_HTML)


@functools.cache
def _lanes() -> Callable[..., object]:
    return component("trinity_lanes", "lanes", LANES_HTML)


@functools.cache
def _tokens() -> Callable[..., object]:
    return component("trinity_tokens", "tokens", TOKENS_HTML)
