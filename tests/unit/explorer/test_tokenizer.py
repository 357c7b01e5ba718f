"""Chats become the tokens of the model's template, with its switches."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from services.explorer.engine.tokenizer import load_tokenizer
from trinity.config.schema.model import THINKING, ModelConfig
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

TEMPLATE = (
    "{{ messages[0]['content'] }}"
    "{% if enable_thinking is defined %}{{ 't' if enable_thinking else 'n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory: Path = tmp_path_factory.mktemp("model")
    vocabulary = {token: number for number, token in enumerate("etnabc")}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="e"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="e")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize(("thinking", "text"), [(None, "ab"), (True, "abt"), (False, "abn")])
def test_the_switch_of_thinking_reaches_the_template(
    model: str, thinking: bool | None, text: str
) -> None:
    given = ModelConfig(enable_thinking=thinking).template_kwargs
    tokenizer = load_tokenizer(model, None, template_kwargs=given)
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}]).text == text


def test_any_variable_reaches_the_template(model: str) -> None:
    template = "{{ messages[0]['content'] }}{{ effort or 'n' }}{{ more['x'] }}"
    question: Message = {"role": "user", "content": "b"}
    kwargs: JsonObject = {"effort": "t", "more": {"x": "a"}}
    tokenizer = load_tokenizer(model, template, template_kwargs=kwargs)
    assert tokenizer.encode_chat([question]).text == "bta"
    assert tokenizer.template_kwargs == kwargs
    with pytest.raises(UserError, match="'more' is undefined"):
        load_tokenizer(model, template).encode_chat([question])


@pytest.mark.parametrize(("adds", "ids"), [("$0", "abc"), ("t $0", "tabc"), ("t $0 e", "tabc")])
@pytest.mark.parametrize("text", ["abc", "tabc"])
def test_a_text_begins_once_and_has_no_end_behind_which_to_go_on(
    model: str, tmp_path: Path, adds: str, ids: str, text: str
) -> None:
    """As with tokenizers that add tokens at the begin of a rendered chat, or an end token."""
    fast = PreTrainedTokenizerFast.from_pretrained(model, bos_token="t")
    specials = [(token, fast.convert_tokens_to_ids(token)) for token in "te"]
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(adds, None, specials)
    fast.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path), None)
    wanted = "tabc" if text == "tabc" else ids
    assert fast.convert_ids_to_tokens(tokenizer.encode(text).token_ids) == list(wanted)
    own_end = tokenizer.encode("abe").token_ids
    assert fast.convert_ids_to_tokens(own_end)[-2:] == ["b", "e"]


def test_the_variables_that_a_template_reads_are_known(model: str) -> None:
    assert load_tokenizer(model, None).template_variables == {"messages", "enable_thinking"}
    sets = (
        "{%- set depth = depth | default(2) %}{% for m in messages %}{% generation %}"
        "{{ m.content }}{% endgeneration %}{% break %}{% endfor %}{% set own = depth %}{{ own }}"
    )
    assert load_tokenizer(model, sets).template_variables == {"messages", "depth"}


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ 'a' + messages[0]['tool_calls'] }}"]
)
def test_messages_that_the_template_does_not_expect_are_an_error_of_the_users(
    model: str, template: str
) -> None:
    calls: Message = {"role": "assistant", "content": None, "tool_calls": [{}]}  # type: ignore[typeddict-item]
    question: Message = {"role": "user", "content": "b"}
    with pytest.raises(UserError, match="the chat template does not take these messages"):
        load_tokenizer(model, template).encode_chat([calls, question])


def test_what_changes_a_prompt_changes_what_the_template_is_known_by(model: str) -> None:
    variants: list[JsonObject] = [
        {},
        {THINKING: True},
        {THINKING: False},
        {"effort": "a"},
        {"effort": "b"},
        {"effort": "a", THINKING: True},
        {THINKING: True, "effort": "a"},
    ]
    known = [load_tokenizer(model, None, template_kwargs=one).template_sha256 for one in variants]
    assert len(set(known)) == 6, "the order of variables makes no difference"
    assert known[-1] == known[-2]
    assert load_tokenizer(model, TEMPLATE).template_sha256 == known[0]


def test_chats_are_remembered_up_to_a_number_of_tokens(model: str) -> None:
    tokenizer = load_tokenizer(model, TEMPLATE, max_cached_tokens=10_000)

    def encode(number: int) -> Prompt:
        return tokenizer.encode_chat([{"role": "user", "content": f"{number:0100}"}])

    again = encode(0)
    for number in range(1, 300):
        encode(number)
        assert encode(0) is again, "what is asked for again and again stays"
    assert 9_800 < tokenizer.prompt_cache.num_tokens <= 10_000


def test_a_chat_that_is_longer_than_all_that_is_remembered_displaces_none(model: str) -> None:
    tokenizer = load_tokenizer(model, TEMPLATE, max_cached_tokens=10)
    short = tokenizer.encode_chat([{"role": "user", "content": "ab"}])
    tokenizer.encode_chat([{"role": "user", "content": "ab" * 10}])
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}]) is short
