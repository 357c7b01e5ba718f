"""Chat templates that write an earlier turn otherwise than the last one."""

import random

import pytest
from transformers import PreTrainedTokenizerFast

from services.trainer.data.encoders import Formatter
from tests.unit.subtests import as_subtests
from tests.unit.trainer.formatting import TEMPLATE, Load, decoded, learned_of, messages_of, only_row
from trinity.errors import UserError
from trinity.types import JsonValue

THOUGHTS_AT_THE_END = """
{%- set asked = namespace(at=-1) -%}
{%- for one in messages if one['role'] == 'user' -%}
{%- set asked.at = messages.index(one) -%}
{%- endfor -%}
{%- for one in messages -%}
<{{ one['role'] }}>
{%- if one['role'] == 'assistant' -%}
{%- set thought = one['content'].split(')')[0].strip('(') if ')' in one['content'] else '' -%}
{%- if loop.index0 > asked.at and (loop.last or thought) -%}({{ thought }}){%- endif -%}
{{ one['content'].split(')')[-1] }}{{ one['calls'] }}
{%- else -%}
{{ one['content'] }}
{%- endif -%}
<end>{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
<assistant>{%- if enable_thinking is defined and not enable_thinking -%}(){%- endif -%}
{%- endif -%}
"""
"""Thoughts, `(so)`, stand in the turns after the last question alone, in the last turn always."""
MARKED = TEMPLATE.replace(
    "{{ message['content'] }}<end>",
    "{% if message['role'] == 'assistant' %}{{ loop.last and '()' or '' }}"
    "{% generation %}{{ message['content'] }}<end>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<end>{% endif %}",
)


@pytest.fixture
def all_turns(formatter_of: Load) -> Formatter:
    return turns_of(formatter_of, THOUGHTS_AT_THE_END)


def turns_of(formatter_of: Load, template: str) -> Formatter:
    return formatter_of(
        max_length=999,
        prompt_type="messages",
        messages_key="messages",
        chat_template=template,
        enable_concatenated_multi_turn=True,
    )


TWO_ANSWERS = messages_of(
    ("user", "a"), ("assistant", "(why)2"), ("user", "b"), ("assistant", "(so)45")
)


def test_answers_are_learned_as_they_stand_in_the_text_of_the_whole(
    tokenizer: PreTrainedTokenizerFast, all_turns: Formatter
) -> None:
    row = only_row(all_turns, {"messages": TWO_ANSWERS})
    assert decoded(tokenizer, row.tokens) == (
        "<user>a<end>\n<assistant>2<end>\n<user>b<end>\n<assistant>(so)45<end>"
    )
    assert decoded(tokenizer, row.tokens[: row.prompt_length]) == "<user>a<end>\n<assistant>"
    assert learned_of(tokenizer, row) == "2<end>(so)45<end>"


def test_a_template_that_always_begins_another_answer_is_refused(formatter_of: Load) -> None:
    always = TEMPLATE.replace("{% if add_generation_prompt %}<assistant>{% endif %}", "<assistant>")
    turns = [("user", "a"), ("assistant", "2")]
    with pytest.raises(
        UserError, match=r"row 0 \(from 0\): .* begins another answer .*`<assistant>`"
    ):
        only_row(turns_of(formatter_of, always), {"messages": messages_of(*turns)})
    never = TEMPLATE.replace("{% if add_generation_prompt %}<assistant>{% endif %}", "")
    only_row(turns_of(formatter_of, never), {"messages": messages_of(*turns)})


def test_what_the_template_adds_to_the_last_turn_is_learned_with_it(
    tokenizer: PreTrainedTokenizerFast, all_turns: Formatter
) -> None:
    turns = [("user", "a"), ("assistant", "2"), ("user", "b"), ("assistant", "45")]
    row = only_row(all_turns, {"messages": messages_of(*turns)})
    assert learned_of(tokenizer, row) == "2<end>()45<end>"


def test_without_thinking_what_the_prompt_writes_itself_is_not_learned(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    formatter = formatter_of(
        model_template=THOUGHTS_AT_THE_END,
        model_thinks=False,
        prompt_type="messages",
        messages_key="messages",
        enable_concatenated_multi_turn=True,
    )
    turns = [("user", "a"), ("assistant", "2"), ("user", "b"), ("assistant", "45")]
    row = only_row(formatter, {"messages": messages_of(*turns)})
    assert decoded(tokenizer, row.tokens).endswith("<user>b<end>\n<assistant>()45<end>")
    assert learned_of(tokenizer, row) == "2<end>45<end>"


def test_calls_of_tools_and_answers_to_their_results_are_learned(
    tokenizer: PreTrainedTokenizerFast, all_turns: Formatter
) -> None:
    call: JsonValue = {"role": "assistant", "content": "(see)", "calls": "+1"}
    chain = [call, *messages_of(("tool", "1"), ("assistant", "1"))]
    messages = [
        *messages_of(("user", "a")),
        *chain,
        *messages_of(("user", "1")),
        *chain,
    ]
    row = only_row(all_turns, {"messages": messages})
    assert decoded(tokenizer, row.tokens) == (
        "<user>a<end>\n<assistant>+1<end>\n<tool>1<end>\n<assistant>1<end>\n"
        "<user>1<end>\n<assistant>(see)+1<end>\n<tool>1<end>\n<assistant>()1<end>"
    )
    assert learned_of(tokenizer, row) == "+1<end>1<end>(see)+1<end>()1<end>"


@as_subtests("seed", range(40))
def test_nothing_but_answers_is_ever_learned(
    tokenizer: PreTrainedTokenizerFast, all_turns: Formatter, seed: int
) -> None:
    """The assistant writes digits and thoughts, all others letters."""
    chance = random.Random(seed)
    turns = [("user", text(chance, "ab"))]
    for _ in range(chance.randint(1, 6)):
        thought = f"({text(chance, '01')})" if chance.random() < 0.5 else ""
        turns.append(("assistant", thought + text(chance, "01")))
        turns.append((chance.choice(["user", "tool"]), text(chance, "ab")))
    row = only_row(all_turns, {"messages": messages_of(*turns)})
    whole, learned = decoded(tokenizer, row.tokens), learned_of(tokenizer, row)
    answers = [part.partition("<end>")[0] for part in whole.split("<assistant>")[1:]]
    assert learned == "".join(f"{answer}<end>" for answer in answers)
    assert not set(learned.replace("<end>", "")) - set("01()")


def text(chance: random.Random, letters: str) -> str:
    return "".join(chance.choice(letters) for _ in range(chance.randint(1, 3)))


def test_a_template_that_marks_what_is_generated_is_taken_at_its_word(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    row = only_row(turns_of(formatter_of, MARKED), {"messages": TWO_ANSWERS})
    assert decoded(tokenizer, row.tokens).endswith("<assistant>()(so)45<end>")
    assert learned_of(tokenizer, row) == "(why)2<end>(so)45<end>"


def test_an_end_that_the_template_writes_after_the_last_turn_alone_is_no_earlier_ones(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    template = (
        "{% for one in messages %}{{ one['role'][0] }}{{ one['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}a{% else %}=<end>{% endif %}"
    )
    row = only_row(turns_of(formatter_of, template), {"messages": messages_of(*TURNS)})
    assert decoded(tokenizer, row.tokens) == "u1a2u3a4=<end>"
    assert learned_of(tokenizer, row) == "24=<end>"


TURNS = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]


@pytest.mark.parametrize(
    "template",
    [
        "{% if not add_generation_prompt %}0{% endif %}" + TEMPLATE,
        TEMPLATE.replace("<assistant>", "<assistant>{{ messages | length }}"),
    ],
)
def test_a_row_that_cannot_be_split_is_named_with_what_to_do(
    formatter_of: Load, template: str
) -> None:
    formatter = turns_of(formatter_of, template)
    with pytest.raises(
        UserError, match=r"`rows`: row 6 \(from 0\): .*message 3.*`format.chat_template`"
    ):
        only_row(formatter, {"messages": messages_of(*TURNS)}, index=6)


@pytest.mark.parametrize(
    "before", ["{{ messages | length }}", "{% if messages | length > 2 %}2{% endif %}"]
)
def test_the_last_answer_follows_the_prompt_that_the_model_gets(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load, before: str
) -> None:
    """Also where the template begins otherwise once the answer is there."""
    row = only_row(turns_of(formatter_of, before + TEMPLATE), {"messages": messages_of(*TURNS)})
    text = decoded(tokenizer, row.tokens)
    assert text[1:] == "<user>1<end>\n<assistant>2<end>\n<user>3<end>\n<assistant>4<end>"
    assert text[0] == {"{{": "3", "{%": "2"}[before[:2]]
    assert learned_of(tokenizer, row) == "2<end>4<end>"


@pytest.mark.parametrize(
    ("closing", "at_the_end", "whole"),
    [
        ("<end>\n", "<end>", "<user>a<end>\n<assistant>2<end>\n<user>b<end>\n<assistant>45<end>"),
        ("<end>\n", "\n<end>", "<user>a<end>\n<assistant>2<end>\n<user>b<end>\n<assistant>45<end>"),
        ("", "", "<user>a<assistant>2<user>b<assistant>45<end>"),
        ("", "<end>", "<user>a<assistant>2<user>b<assistant>45<end>"),
    ],
)
def test_a_second_end_token_at_the_end_changes_no_other_turn(
    tokenizer: PreTrainedTokenizerFast,
    formatter_of: Load,
    closing: str,
    at_the_end: str,
    whole: str,
) -> None:
    """As those of Phi-3, which write `<|end|>` after a turn and one more after all."""
    turns = TEMPLATE.replace("<end>\n", closing)
    end = "{% if not add_generation_prompt %}" + at_the_end + "{% endif %}"
    rows = [("user", "a"), ("assistant", "2"), ("user", "b"), ("assistant", "45")]
    row = only_row(turns_of(formatter_of, turns + end), {"messages": messages_of(*rows)})
    assert decoded(tokenizer, row.tokens) == whole
    assert learned_of(tokenizer, row) == ("2<end>45<end>" if closing else "245<end>")


def test_an_end_token_that_opens_the_next_turn_ends_the_answer_before_it(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    """As in GLM, where `<|user|>` is both: a rollout ends with it."""
    opened = TEMPLATE.replace("<end>\n", "").replace("<{{ message['role'] }}>", "{{ opening }}")
    roles = "{% set opening = '<end>' if message['role'] == 'user' else '<assistant>' %}"
    template = opened.replace(
        "{% for message in messages %}", "{% for message in messages %}" + roles
    )
    formatter = turns_of(formatter_of, template)
    row = only_row(formatter, {"messages": TWO_ANSWERS})
    assert decoded(tokenizer, row.tokens) == "<end>a<assistant>(why)2<end>b<assistant>(so)45<end>"
    assert learned_of(tokenizer, row) == "(why)2<end>(so)45<end>"
    silent = [*messages_of(("user", "")), *TWO_ANSWERS]
    row = only_row(formatter, {"messages": silent}, index=1)
    assert decoded(tokenizer, row.tokens).startswith("<end><end>a<assistant>(why)2<end>b")
    assert learned_of(tokenizer, row) == "(why)2<end>(so)45<end>"


def test_an_answer_of_one_token_between_two_ends_has_the_second(
    tokenizer: PreTrainedTokenizerFast, formatter_of: Load
) -> None:
    template = (
        "{% for one in messages %}{% if one['role'] == 'user' %}<end>{{ one['content'] }}<end>"
        "{% else %}{{ one['content'] }}{% endif %}{% endfor %}"
    )
    row = only_row(turns_of(formatter_of, template), {"messages": messages_of(*TURNS)})
    assert decoded(tokenizer, row.tokens) == "<end>1<end>2<end>3<end>4<end>"
    assert learned_of(tokenizer, row) == "2<end>4<end>"


def test_a_template_that_marks_nothing_is_named(formatter_of: Load) -> None:
    template = "{% if false %}{% generation %}{% endgeneration %}{% endif %}" + TEMPLATE
    with pytest.raises(UserError, match="the chat template marks no part of it as generated"):
        only_row(turns_of(formatter_of, template), {"messages": TWO_ANSWERS})
