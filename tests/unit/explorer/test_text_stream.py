"""Text is shown once it is certain, and all of it in the end."""

import pytest

from services.explorer.openai_api.chat_completions import TextStream


def decode(tokens: list[int]) -> str:
    """A token is a byte: characters of several are whole only with the last of them."""
    return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("text", ["plain", "größer", "日本 語", "🙂🙂", ""])
def test_no_half_character_is_shown(text: str) -> None:
    stream = TextStream(decode)
    shown = [stream.feed_tokens([byte]) for byte in text.encode()]
    assert "".join(shown) + stream.end(text) == text
    assert not any("\ufffd" in one for one in shown)


def test_what_may_be_the_beginning_of_a_stop_is_held_back() -> None:
    stream = TextStream(decode, stop=["END"])
    shown = "".join(stream.feed_tokens([byte]) for byte in b"all of it EN")
    assert shown == "all of it "
    assert shown + stream.end("all of it ") == "all of it "


def test_what_was_held_back_is_told_in_the_end() -> None:
    stream = TextStream(decode, stop=["END"])
    shown = stream.feed_tokens(list(b"the BEN"))
    assert shown + stream.end("the BEN") == "the BEN"


@pytest.mark.parametrize(
    ("stop", "pieces", "told"),
    [
        (["END"], [b"a", b"b", b"E", b"N", b"D"], "ab"),
        (["END"], [b"ab", b"END and more"], "ab"),
        (["\n"], [b"a", b"b", b"\n"], "ab"),
        (["\n"], [b"ab\ncd"], "ab"),
        (["END", "\n"], [b"ab\nEND"], "ab"),
        (["END"], [b"END", b"D"], ""),
    ],
)
def test_nothing_of_a_text_to_stop_at_is_told(
    stop: list[str], pieces: list[bytes], told: str
) -> None:
    stream = TextStream(decode, stop)
    shown = "".join(stream.feed_tokens(list(piece)) for piece in pieces)
    assert shown + stream.end(told) == told
