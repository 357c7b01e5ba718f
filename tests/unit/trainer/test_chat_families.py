"""Templates with the traits of public ones: rows are trained right, or refused by name."""

import os
from pathlib import Path

import pytest

from tests.support.chat_families import (
    BEGIN,
    END,
    KINDS,
    THINKS,
    Family,
    cell,
    encode,
    fault,
    rollout_cell,
    table,
)
from tests.unit.source_names import ROOT
from tests.unit.subtests import as_subtests

CALLS = (
    "{% for c in m.tool_calls %}<|call|>{{ c.function.name }} {{ c.function.arguments | tojson }}"
    "{% endfor %}"
)
OFFERED = "{% for t in tools or [] %}<|tool|>{{ t.function.name }}<|end|>{% endfor %}"
USUAL = (
    "<bos>"
    + OFFERED
    + "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    + CALLS
    + "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""It writes all there is, and ends all turns alike."""
SAYS = "{{ m.content.split('</think>')[-1] }}"
OPENS = USUAL.replace("{{ m.content }}", SAYS).replace(
    "<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}"
)
"""The prompt opens a thought, and no turn has any, as R1-Distill's."""
CLOSED = OPENS.replace(
    "{{ m.role }}|>", "{{ m.role }}|>{% if m.role == 'assistant' %}</think>{% endif %}"
)
"""Turns without thoughts begin with what closes one, as DeepSeek-V3.1's with `thinking`."""
EMPTY = USUAL.replace("<|assistant|>{% endif %}", "<|assistant|><|think>none<think|>{% endif %}")
"""The prompt has an empty thought that answers in data lack, as Gemma 4's."""
CHANNELS = """
{%- for t in tools or [] %}<|start|>tool {{ t.function.name }}<|end|>{% endfor %}
{%- for m in messages %}
{%- set later = namespace(answer=false) %}
{%- for n in messages[loop.index:] %}
{%- if n.role == 'assistant' and not n.tool_calls %}{% set later.answer = true %}{% endif %}
{%- endfor %}
{%- set thinks = not later.answer and (m.tool_calls or (loop.last and not add_generation_prompt)) %}
{%- if m.thinking and thinks %}
{{- '<|start|>assistant<|channel|>analysis ' + m.thinking + '<|end|>' }}
{%- endif %}
{%- if m.tool_calls %}
{{- '<|start|>assistant<|channel|>to ' + m.tool_calls[0].function.name + ' ' }}
{{- m.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final ' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- else %}<|start|>{{ m.role }} {{ m.content | tojson }}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""Channels, another end for the last turn, and thoughts up to an answer, as gpt-oss's."""
JOINS = USUAL.replace(
    "{{ c.function.name }} {{ c.function.arguments | tojson }}",
    "{{ c.function.name + c.function.arguments }}",
)
"""Arguments are joined as texts, as DeepSeek's."""
NEXT = USUAL.replace("<|end|>\n{% endfor %}", "{% endfor %}")
"""A turn is ended by what opens the next, as GLM's."""
LATE = USUAL.replace(
    "<|{{ m.role }}|>{{ m.content }}",
    "{% if m.role != 'system' %}<|{{ m.role }}|>{% if loop.last and m.role == 'user' %}"
    "{{ messages[0].content if messages[0].role == 'system' }} {% endif %}"
    "{{ m.content }}{% endif %}",
)
"""The system prompt stands in a last message of the user alone, as Mistral Nemo's."""
SILENT = USUAL.replace(CALLS, "")
"""No calls, as LFM2's."""
DEAF = SILENT.replace(OFFERED, "")
"""Neither calls nor tools, as Llama 3's and Phi-3's."""
STRICT = (
    "{% for m in messages if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('users and assistants only') }}{% endfor %}" + USUAL
)
"""As Gemma 2's."""
LOST = "refused: drops the thoughts"
RIGHT = ["right"] * 4


def family(opens: str = "", **changes: object) -> Family:
    known: dict[str, object] = {"opens": r"<\|assistant\|>" + opens, "end_tokens": "<|end|>"}
    return Family(name="own", path="", **{**known, **changes})  # type: ignore[arg-type]


HARMONY = Family(
    *("own", "", r"<\|start\|>assistant", "<|return|> <|call|>", "<|channel|>final {}", "thinking"),
    ends=r"<\|return\|>|<\|call\|>|<\|end\|>(?!<\|start\|>assistant)",
)


@as_subtests(
    ("own", "template", "said", "turns"),
    [
        (family(), USUAL, [*RIGHT, LOST, "right"], "one sample"),
        (family(r"(?:<think>\n)?", says=THINKS), OPENS, ["right"] * 6, "a sample a turn"),
        (family(r"(?:</think>|<think>\n)", says=THINKS), CLOSED, ["right"] * 6, "a sample a turn"),
        (family(r"(?:<\|think>none<think\|>)?"), EMPTY, [*RIGHT, LOST, "right"], "a sample a turn"),
        (HARMONY, CHANNELS, ["right"] * 6, "a sample a turn"),
        (family(), JOINS, [*RIGHT, LOST, "right"], "one sample"),
        (
            family(end_tokens="<|user|> <|tool|> <|end|>"),
            NEXT,
            [*RIGHT, LOST, "right"],
            "one sample",
        ),
        (family(), LATE, [*RIGHT, LOST, "right"], "a sample a turn"),
        (family(), SILENT, [*RIGHT, LOST, "refused: drops `tool_calls`"], "one sample"),
        (family(), DEAF, [*RIGHT, LOST, "refused: drops `tools`"], "one sample"),
        (
            family(),
            STRICT,
            [
                *RIGHT[:3],
                "refused: its own error",
                LOST,
                "refused: its own error",
            ],
            "one sample",
        ),
    ],
)
def test_rows_are_trained_right_or_refused_by_name(
    own: Family, template: str, said: list[str], turns: str
) -> None:
    assert [cell(own, template, kind) for kind in KINDS] == said
    assert rollout_cell(own, template) == turns


def test_the_rule_sees_a_wrong_mask() -> None:
    ((text, trained),) = encode(family(), USUAL, "all answers")
    assert fault(family(), "all answers", [(text, trained)]) == ""
    for wrong in (trained[1:], [trained[0][:-1], trained[1]], [f"|>{trained[0]}", trained[1]]):
        assert fault(family(), "all answers", [(text, wrong)]) != ""


FOLDER = os.environ.get("TRINITY_CHAT_TEMPLATES", "")


@pytest.mark.skipif(not FOLDER, reason="TRINITY_CHAT_TEMPLATES names no folder of templates")
def test_the_page_shows_what_public_templates_give() -> None:
    page = (ROOT / "docs" / "what-is-trained.md").read_text(encoding="utf-8")
    made = table(Path(FOLDER))
    assert f"{BEGIN}\n{made}\n{END}" in page
    assert "WRONG" not in made
