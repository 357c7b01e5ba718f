"""The token strip: texts, values and colours of a response's tokens."""

import json
import math
from collections.abc import Sequence as Ids
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from tests.unit.inspect.builders import content, record, sequence
from trinity.api.v1 import query_pb2
from trinity.data.codec import experience_from_proto
from trinity.errors import UserError
from trinity.studio.conversation import (
    PREVIEW_CHARS,
    ConversationTurn,
    conversation_line,
    conversation_turns,
    is_folded,
)
from trinity.studio.experiences import (
    IMAGE_MARK,
    MAX_CONDITIONS_CHARS,
    ShownMessage,
    TurnTokens,
    WholeExperience,
    experience_row,
    new_messages,
    split_conditions,
)
from trinity.studio.pages import experiences
from trinity.studio.plain_text import beginning_of
from trinity.studio.tokens import (
    ADVANTAGES,
    LOG_RATIOS,
    PART,
    WINDOW_TOKENS,
    colors_of,
    model_of,
    signed_level,
    token_strip,
    token_texts,
)
from trinity.types import Alignment, Array, BlobRef, Experience, RoleSpan

RAINBOW = "\N{RAINBOW}"


def byte_tokenizer() -> Tokenizer:
    """One token a byte, so that a character of four bytes is four tokens."""
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in letters]
    names = {byte: chr(byte) for byte in letters} | {
        byte: chr(256 + place) for place, byte in enumerate(rest)
    }
    tokenizer = Tokenizer(BPE(vocab={name: byte for byte, name in names.items()}, merges=[]))
    tokenizer.decoder = ByteLevel()
    return tokenizer


def whole(sample: Experience | None = None, trained: bool = True) -> WholeExperience:
    row = experience_row(record(trained=trained))
    made = sample or experience_from_proto(content())
    uses: tuple[query_pb2.BatchUse, ...] = ()
    return WholeExperience(row=row, sample=made, run_seconds=1.0, metrics={}, uses=uses)


def with_tokens(num_tokens: int) -> Experience:
    sample = experience_from_proto(content())
    body = sequence()
    body.tokens = np.arange(num_tokens + 2, dtype=np.int32)
    body.action_mask = np.ones(num_tokens, np.bool_)
    body.rollout_logprobs = np.full(num_tokens, -0.2, np.float32)
    sample.body = body
    return sample


def texts(ids: Ids[int]) -> list[str]:
    return [text.text if not text.is_part else PART for text in token_texts(byte_tokenizer(), ids)]


def test_a_character_that_is_split_is_shown_once_where_it_is_complete() -> None:
    assert texts(list(f"a{RAINBOW}b".encode())) == ["a", PART, PART, PART, RAINBOW, "b"]


def test_texts_of_whole_characters_join_to_the_response() -> None:
    text = "x <script> \N{GREEK SMALL LETTER ALPHA}\n" * 3
    assert "".join(t.text for t in token_texts(byte_tokenizer(), list(text.encode()))) == text


def test_masked_tokens_have_no_colour_and_no_values(tmp_path: Path) -> None:
    strip = token_strip(whole(), tmp_path, color="surprise")
    first, masked, last = strip.tokens
    assert (first.is_chosen, masked.is_chosen) == (True, False)
    assert masked.level is None
    assert [name for name, _ in masked.facts] == ["#1", "masked", "role"]
    assert dict(first.facts)["rollout"] == "-0.500 nats, 60.7%"
    assert (first.level, last.level) == (1, 2)


def test_weights_are_named_where_they_change(tmp_path: Path) -> None:
    strip = token_strip(whole(), tmp_path, color="age")
    assert [token.label for token in strip.tokens] == ["v4", "v5", ""]


def test_what_nobody_stored_is_said_not_to_be_recorded(tmp_path: Path) -> None:
    facts = dict(token_strip(whole(), tmp_path, color="surprise").tokens[0].facts)
    assert facts["trainer"] == "not recorded"
    sample = experience_from_proto(content())
    sample.version_spans = ()
    assert "age" not in colors_of(whole(sample))
    facts = dict(token_strip(whole(sample), tmp_path, color="surprise").tokens[0].facts)
    assert facts["weights"] == "not recorded"


def test_an_array_of_the_tokens_is_a_colour_whose_scale_leaves_masked_ones_out(
    tmp_path: Path,
) -> None:
    sample = experience_from_proto(content())
    values = np.array([-2.0, 99.0, 1.0], np.float32)
    sample.arrays["advantages"] = Array(values, Alignment.RESPONSE)
    assert colors_of(whole(sample))[-1] == "advantages"
    strip = token_strip(whole(sample), tmp_path, color="advantages")
    assert [token.level for token in strip.tokens] == [0, None, 5]
    assert strip.scale == "-2 (blue) to +2 (orange)"


def trained(step: int, *values: float, advantage: float = -0.5) -> query_pb2.BatchUse:
    """A use whose trainer recorded these log-probabilities."""
    logprobs = np.array(values, "<f4")
    advantages = np.where(np.isnan(logprobs), np.nan, advantage).astype("<f4")
    use = query_pb2.BatchUse(step=step)
    use.tokens.logprobs, use.tokens.advantages = logprobs.tobytes(), advantages.tobytes()
    return use


def test_values_of_the_trainer_are_shown_beside_those_of_the_rollout(tmp_path: Path) -> None:
    shown = replace(
        whole(), uses=(trained(3, -9.0, math.nan, -9.0), trained(4, -0.75, math.nan, -1))
    )
    assert colors_of(shown)[-2:] == [ADVANTAGES, LOG_RATIOS]
    strip = token_strip(shown, tmp_path, color=LOG_RATIOS)
    facts = dict(strip.tokens[0].facts)
    assert facts["trainer"] == "-0.750 nats, 47.2%"
    assert facts["ratio"] == "0.7788"
    assert facts[ADVANTAGES] == "-0.5"
    assert strip.tokens[1].level is None  # masked


def test_values_of_another_number_of_tokens_are_not_shown(tmp_path: Path) -> None:
    shown = replace(whole(), uses=(trained(3, -0.75, -1.0),))
    assert colors_of(shown)[-1] != LOG_RATIOS
    assert (
        dict(token_strip(shown, tmp_path, color="age").tokens[0].facts)["trainer"] == "not recorded"
    )


def test_likeliest_tokens_are_shown_where_they_are_stored(tmp_path: Path) -> None:
    sample = experience_from_proto(content())
    tokens = np.array([[7, 65], [8, 66], [9, 67]], np.int32)
    logprobs = np.log(np.array([[0.6, 0.2]] * 3, np.float32))
    sample.arrays["likeliest_tokens"] = Array(tokens, Alignment.RESPONSE)
    sample.arrays["likeliest_logprobs"] = Array(logprobs, Alignment.RESPONSE)
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    facts = dict(token_strip(whole(sample), tmp_path, color="surprise").tokens[0].facts)
    assert facts["likeliest"].endswith("'A' 20.0%")


def test_a_long_response_is_shown_in_windows(tmp_path: Path) -> None:
    strip = token_strip(whole(with_tokens(32_768)), tmp_path, color="surprise", first=31_744)
    assert (len(strip.tokens), strip.num_tokens) == (WINDOW_TOKENS, 32_768)
    assert dict(strip.tokens[0].facts).keys() >= {"#31744"}


def test_without_a_tokenizer_the_numbers_are_shown_and_why(tmp_path: Path) -> None:
    strip = token_strip(whole(), tmp_path, color="surprise")
    assert [token.text for token in strip.tokens] == [" 7", " 8", " 9"]
    assert strip.note.endswith(f"as {tmp_path} has no readable tokenizer.json.")
    (tmp_path / "tokenizer.json").write_text("{")
    assert token_strip(whole(), None, color="surprise").note.endswith("model on this machine.")


@pytest.mark.parametrize(
    ("value", "level"), [(0.0, 3), (0.01, 4), (1.0, 6), (-1.0, 0), (2.0, 6), (math.nan, None)]
)
def test_signed_scales_have_their_middle_at_zero(value: float, level: int | None) -> None:
    assert signed_level(value, 1.0)[0] == level
    assert signed_level(value, 1.0)[1] == (value == 2.0 or math.isnan(value))


def test_the_tokenizer_is_the_runs_own_before_the_models_it_started_from(tmp_path: Path) -> None:
    model, own = tmp_path / "model", tmp_path / "stages/rft/model_files"
    plan = {"label": "p/n", "stages": [{"name": "rft", "model_path": str(model)}]}
    assert model_of(tmp_path, "rft") is None
    (tmp_path / "config.json").write_text(json.dumps(plan))
    assert model_of(tmp_path, "rft") is None
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    assert model_of(tmp_path, "rft") == model
    own.mkdir(parents=True)
    (own / "tokenizer.json").write_text("{}")
    assert model_of(tmp_path, "rft") == own


def turn(text: str, *roles: tuple[str, str], prompt: str) -> TurnTokens:
    """A sample of one byte a token, with these messages in it."""
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    spans, at = [], 0
    for role, said in roles:
        at = text.index(said, at)
        spans.append(RoleSpan(role=role, start=at, end=at + len(said)))
        at += len(said)
    return TurnTokens(tokens=tokens, prompt_length=len(prompt), spans=tuple(spans))


def shown(before: TurnTokens | None, now: TurnTokens) -> list[tuple[str, str]]:
    found = new_messages(before, now, lambda ids: bytes(ids).decode())
    return [(message.role, message.text) for message in found]


SYSTEM, QUESTION = ("system", "<s>brief"), ("user", "<u>what?")
FIRST = turn("<s>brief<u>what?<a>f()", SYSTEM, QUESTION, prompt="<s>brief<u>what?<a>")


def test_a_conversation_shows_each_message_once_by_its_role() -> None:
    assert shown(None, FIRST) == [SYSTEM, QUESTION, ("policy", "f()")]
    prompt = "<s>brief<u>what?<a>f()<t>7<a>"
    roles = (SYSTEM, QUESTION, ("assistant", "<a>f()"), ("tool", "<t>7"))
    second = turn(f"{prompt}it is 7", *roles, prompt=prompt)
    assert shown(FIRST, second) == [("tool", "<t>7"), ("policy", "it is 7")]


def conversation(model: Path | None) -> tuple[ConversationTurn, ...]:
    """A run of two turns; of the second no roles were recorded."""
    first = replace(experience_row(record()), content=FIRST)
    second = replace(experience_row(record()), turn=1, prompt="all of it")
    return conversation_turns((first, second), model)


def test_messages_have_roles_and_turns_without_them_say_so(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    first, second = conversation(tmp_path)
    assert [(message.role, message.num_tokens, message.text) for message in first.messages] == [
        ("system", 8, "<s>brief"),
        ("user", 8, "<u>what?"),
        ("policy", 3, "f()"),
    ]
    assert first.note == "" and first.head.startswith("turn 0 · weights ")
    assert second.note == "the roles of its messages were not recorded"
    assert [message.role for message in second.messages] == ["prompt", "response"]
    assert second.messages[0].text == "all of it"


def test_images_are_at_the_message_that_shows_them_and_once(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    first, second, third = (
        BlobRef(name="image", sha256=bytes([n]) * 32, size=1, media_type="image/png")
        for n in range(3)
    )
    question = f"<u>two:{3 * IMAGE_MARK}, {2 * IMAGE_MARK}?"
    brief, asked = ("system", "<s>brief"), ("user", question)
    start = turn(f"<s>brief{question}<a>f()", brief, asked, prompt=f"<s>brief{question}<a>")
    prompt = f"<s>brief{question}<a>f()<t>{IMAGE_MARK}<a>"
    roles = (brief, asked, ("assistant", "<a>f()"), ("tool", f"<t>{IMAGE_MARK}"))
    end = turn(f"{prompt}it is 7", *roles, prompt=prompt)
    rows = [
        replace(experience_row(record()), turn=0, content=start, images=(first, second)),
        replace(experience_row(record()), turn=1, content=end, images=(first, second, third)),
    ]
    shown = conversation_turns(rows, tmp_path)
    assert [[message.images for message in turn.messages] for turn in shown] == [
        [(), (first, second), ()],
        [(third,), ()],
    ]
    assert shown[0].messages[1].text == f"<u>two:{IMAGE_MARK}, {IMAGE_MARK}?"
    [whole] = conversation_turns(rows[1:], None)  # its texts have no marks
    assert whole.messages[0].images == (first, second, third)


def test_without_a_tokenizer_a_turn_is_shown_whole() -> None:
    first, _ = conversation(None)
    assert first.note.endswith("recorded, but there is no tokenizer here")


def test_a_conversation_is_counted_in_turns_and_answers_of_tools() -> None:
    turns = conversation(None)
    assert conversation_line(turns) == "2 turns"
    tools = (ShownMessage("tool", 1, "7"), ShownMessage("tool", 1, "8"))
    assert (
        conversation_line([replace(turns[0], messages=tools[:1])]) == "1 turn · 1 answer of a tool"
    )
    assert conversation_line([replace(turns[0], messages=tools)]) == "1 turn · 2 answers of tools"


@pytest.mark.parametrize(
    ("message", "folded"),
    [
        (ShownMessage("system", 1, "short"), True),
        (ShownMessage("user", 1, "short"), False),
        (ShownMessage("tool", 1, "line\n" * 20), True),
        (ShownMessage("tool", 1, "x" * 2_000), True),
        (ShownMessage("policy", 1, "x" * 2_000), False),
    ],
    ids=["system", "user", "lines", "characters", "policy"],
)
def test_long_messages_are_folded_but_for_the_policys(message: ShownMessage, folded: bool) -> None:
    assert is_folded(message) == folded
    beginning = beginning_of(message.text, PREVIEW_CHARS)
    assert len(beginning) <= 81 and "\n" not in beginning


def draw_conversation() -> None:
    """The tab of a conversation whose texts are hostile."""
    row = replace(experience_row(record()), prompt="[x](http://evil)\u202e", response="<script>")
    experiences._show_conversation(conversation_turns((row,), None), {})


def test_the_tab_of_a_conversation_reads_no_markup() -> None:
    script = "from tests.unit.studio import test_tokens\ntest_tokens.draw_conversation()"
    page = AppTest.from_string(script, default_timeout=60).run()
    assert not page.exception and not page.markdown
    assert [str(text.value) for text in page.text] == ["1 turn"]


def test_an_answer_that_the_template_has_rewritten_is_shown_again() -> None:
    prompt = "<s>brief<u>what?<a>g()<t>7<a>"
    roles = (SYSTEM, QUESTION, ("assistant", "<a>g()"), ("tool", "<t>7"))
    second = turn(f"{prompt}ok", *roles, prompt=prompt)
    assert [role for role, _ in shown(FIRST, second)] == ["assistant", "tool", "policy"]


def test_turns_in_one_sample_are_told_apart() -> None:
    text = "<u>what?<a>f()<t>7<a>ok"
    roles = (QUESTION, ("assistant", "f()"), ("tool", "<t>7"))
    whole = turn(text, *roles, prompt="<u>what?<a>")
    assert shown(None, whole)[1:] == [("policy", "f()"), ("tool", "<t>7"), ("policy", "<a>ok")]


def test_a_masked_token_names_its_role_where_it_was_recorded(tmp_path: Path) -> None:
    sample = experience_from_proto(content())
    masked = token_strip(whole(sample), tmp_path, color="surprise").tokens[1]
    assert ("role", "not recorded") in masked.facts
    sample.body = replace(sequence(), role_spans=(RoleSpan(role="tool", start=3, end=4),))
    masked = token_strip(whole(sample), tmp_path, color="surprise").tokens[1]
    assert ("role", "tool") in masked.facts
    sample.body = replace(sequence(), role_spans=(RoleSpan(role="user", start=0, end=2),))
    masked = token_strip(whole(sample), tmp_path, color="surprise").tokens[1]
    assert ("role", "template") in masked.facts


def test_a_record_without_roles_says_nothing_of_messages() -> None:
    assert experience_row(record()).content is None
    body = replace(sequence(), role_spans=(RoleSpan(role="user", start=0, end=2),))
    kept = experience_row(record(body=body)).content
    assert kept is not None and kept.spans == body.role_spans and kept.prompt_length == 2


def test_a_text_in_a_filter_may_have_blanks() -> None:
    words = "reward=..0.5 text=the answer is task=train:3"
    assert split_conditions(words) == ["reward=..0.5", "text=the answer is", "task=train:3"]
    assert split_conditions("text=2 + 2 = 4") == ["text=2 + 2 = 4"]
    assert split_conditions("  ") == []
    assert split_conditions("nonsense") == ["nonsense"]


def test_conditions_of_an_address_are_read_up_to_a_length() -> None:
    words = "text=" + "a " * (MAX_CONDITIONS_CHARS // 2 - 5)
    assert split_conditions(words) == [words.strip()]
    with pytest.raises(UserError, match="give at most 20,000"):
        split_conditions(words * 2)
