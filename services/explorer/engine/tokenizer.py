"""The Hugging Face tokenizer of a model, with a cache of encoded chats and the roles in prompts.

A chat template writes a chat in a loop over its messages. A copy of the template puts marks around
what each pass of such a loop writes; without the marks its text must be the prompt itself. Where it
is not, as with a template that trims what its loop has written, roles are not known.

    roles = ChatRoles(template)
    roles.parts(text, messages, {"tools": None, "add_generation_prompt": True})
"""

import hashlib
import json
import re
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trinity.config.checks.chat_template import TEMPLATE_EXTENSIONS, template_variables
from trinity.errors import UserError
from trinity.types import JsonObject, RoleSpan
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

BEGIN, END = "trinity_begin_of_message", "trinity_end_of_messages"
MARK = re.compile("\ue000(\\d*)\ue001")
"""Two characters of Unicode's private use, with the place of a message between them, or nothing."""
SYSTEM_ROLES = ("system", "developer")


class ChatPart(NamedTuple):
    """Characters [start, end) of a prompt that a message of this role became."""

    role: str
    start: int
    end: int


class ChatRoles:
    """The roles in the prompts of one chat template."""

    def __init__(self, template: str) -> None:
        environment = _environment()
        tree = environment.parse(template)
        for number, loop in enumerate(list(tree.find_all(nodes.For))):
            _mark(tree, loop, number)
        code = environment.compile(tree)
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def parts(
        self, text: str, messages: Sequence[Message], variables: Mapping[str, object]
    ) -> list[ChatPart]:
        """Returns the parts of a prompt; none where the marked template writes another one."""
        loops = _Loops()
        marks = {BEGIN: loops.begin, END: loops.end}
        try:
            marked = self._template.render(
                {"documents": None, **variables, "messages": messages, **marks}
            )
        except (TemplateError, TypeError, ValueError, LookupError):
            return []
        if not MARK.sub("", marked).startswith(text):
            return []
        parts = [part for part in _split(marked, loops.roles) if part.start < len(text)]
        return _with_system(text, parts, messages)


def role_spans(parts: Sequence[ChatPart], encoding: "BatchEncoding") -> tuple[RoleSpan, ...]:
    """Converts parts of a text to spans of its tokens; none where the tokenizer does not tell.

    A token across the border of two messages belongs to the first.
    """
    if not parts or not encoding.is_fast:
        return ()
    ends = [end for _, end in encoding.encodings[0].offsets]
    spans: list[RoleSpan] = []
    for part in parts:
        start = max(bisect_right(ends, part.start), spans[-1].end if spans else 0)
        end = bisect_left(ends, part.end) + 1
        if start < (end := min(end, len(ends))):
            spans.append(RoleSpan(role=part.role, start=start, end=end))
    return tuple(spans)


class _Loops:
    """Notes the roles of the messages that loops come to, and tells their marks."""

    def __init__(self) -> None:
        self.roles: list[str] = []
        self._marked: set[int] = set()

    def begin(self, loop: int, item: object) -> str:
        """Returns the mark before a message; nothing if the loop is over something else."""
        role = item.get("role") if isinstance(item, Mapping) else None
        if not isinstance(role, str):
            return ""
        self._marked.add(loop)
        self.roles.append(role)
        return f"\ue000{len(self.roles) - 1}\ue001"

    def end(self, loop: int) -> str:
        """Returns the mark after a loop over messages."""
        return "\ue000\ue001" if loop in self._marked else ""


def _mark(tree: nodes.Template, loop: nodes.For, number: int) -> None:
    """Lets a loop write a mark before each of its items, and one after the last."""
    if not isinstance(loop.target, nodes.Name):
        return
    item = nodes.Name(loop.target.name, "load")
    loop.body.insert(0, _output(BEGIN, [nodes.Const(number), item], tree.environment))
    for body in _bodies(tree):
        if loop in body:
            body.insert(body.index(loop) + 1, _output(END, [nodes.Const(number)], tree.environment))


def _output(name: str, arguments: list[nodes.Expr], environment: Any) -> nodes.Output:
    call = nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)
    output = nodes.Output([call], lineno=1)
    output.set_environment(environment)
    return output


def _bodies(tree: nodes.Node) -> Iterator[list[nodes.Node]]:
    """Yields all lists of statements of a template."""
    for node in (tree, *tree.find_all(nodes.Node)):
        for name in ("body", "else_"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _split(marked: str, roles: Sequence[str]) -> Iterator[ChatPart]:
    """Yields the parts between marks that have any text."""
    place, start, role = 0, 0, ""
    for mark in (*MARK.finditer(marked), None):
        end = len(marked) if mark is None else mark.start()
        length = end - start
        if role and length:
            yield ChatPart(role, place, place + length)
        place += length
        if mark is not None:
            start, role = mark.end(), roles[int(mark[1])] if mark[1] else ""


def _with_system(text: str, parts: list[ChatPart], messages: Sequence[Message]) -> list[ChatPart]:
    """Adds a first message of the system that the template wrote before its loop."""
    first: Mapping[str, object] = messages[0] if messages else {}
    begin = parts[0].start if parts else 0
    role, content = first.get("role"), first.get("content")  # a workflow may give others, or none
    if role not in SYSTEM_ROLES or begin == 0:
        return parts
    is_there = isinstance(content, str) and content.strip() and content.strip() in text[:begin]
    return [ChatPart(str(role), 0, begin), *parts] if is_there else parts


def _environment() -> ImmutableSandboxedEnvironment:
    """Returns an environment like that of transformers, whose text the marked one must equal."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=TEMPLATE_EXTENSIONS
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes a value as transformers does, without HTML's escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


MAX_CACHED_TOKENS = 1 << 20
"""Size of the cache of chats, which runs of a task share; a token takes some 50 bytes."""


class PromptCache:
    """An LRU cache of prompts with at most `max_tokens` tokens in all.

    It is thread-safe, as workflows in threads use it too.

        prompt = prompts.get(chat)
        prompts.put(chat, prompt)
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()
        self._num_tokens = 0
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        """Total tokens of the cached prompts."""
        return self._num_tokens

    def get(self, chat: str) -> Prompt | None:
        """Returns the prompt of a chat, if it is cached."""
        with self._lock:
            prompt = self._prompts.get(chat)
            if prompt is not None:
                self._prompts.move_to_end(chat)
            return prompt

    def put(self, chat: str, prompt: Prompt) -> None:
        """Caches a prompt, and evicts those not used for longest."""
        with self._lock:
            if chat in self._prompts or len(prompt.token_ids) > self._max_tokens:
                return
            self._prompts[chat] = prompt
            self._num_tokens += len(prompt.token_ids)
            while self._num_tokens > self._max_tokens:
                _, oldest = self._prompts.popitem(last=False)
                self._num_tokens -= len(oldest.token_ids)


NOT_RENDERED = (TemplateError, TypeError, ValueError, LookupError)
"""Exceptions that templates raise for messages they do not expect, such as roles out of turn."""


class HuggingFaceTokenizer:
    """A `ChatTokenizer` over transformers' tokenizer of a model."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        chat_template: str | None,
        end_token_ids: tuple[int, ...],
        *,
        template_kwargs: JsonObject | None = None,
        max_cached_tokens: int = MAX_CACHED_TOKENS,
    ) -> None:
        self.end_token_ids = end_token_ids
        self._tokenizer = tokenizer
        self._template = chat_template or tokenizer.chat_template
        if not isinstance(self._template, str):
            raise UserError(
                f"the model {tokenizer.name_or_path} has no chat template; "
                "give one with model.chat_template_path"
            )
        tokenizer.chat_template = self._template
        self.template_kwargs: JsonObject = dict(sorted((template_kwargs or {}).items()))
        """Further variables of the template."""
        switched = "".join(f"\0{name}={value}" for name, value in self.template_kwargs.items())
        self.template_sha256 = hashlib.sha256((self._template + switched).encode()).digest()
        self._roles = ChatRoles(self._template)
        self.prompt_cache = PromptCache(max_cached_tokens)

    @property
    def hf_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The underlying transformers tokenizer, with the chat template of the run."""
        return self._tokenizer

    @cached_property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads."""
        return template_variables(self._template)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Applies the chat template; a last message of the assistant is continued."""
        chat = json.dumps([messages, list(tools)])
        prompt = self.prompt_cache.get(chat)
        if prompt is None:
            prompt = self._encode_chat(chat)
            self.prompt_cache.put(chat, prompt)
        return prompt

    def _encode_chat(self, chat_json: str) -> Prompt:
        messages, tools = json.loads(chat_json)
        continues = messages[-1]["role"] == "assistant"
        variables: JsonObject = {
            "tools": tools or None,
            "add_generation_prompt": not continues,
            **self.template_kwargs,
        }
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=False,
                continue_final_message=continues,
                **variables,
            )
        except NOT_RENDERED as error:
            raise UserError(f"the chat template does not take these messages: {error}") from error
        text = str(text)
        variables = {**self._tokenizer.special_tokens_map, **variables}
        parts = self._roles.parts(text, messages, variables)
        return self._encode(text, add_special_tokens=False, parts=parts)

    def encode(self, text: str) -> Prompt:
        """Encodes plain text, with the token that the tokenizer begins texts with.

        It stands there once, also where the text begins with it, as a rendered chat does. An end
        token that the tokenizer adds is left out, since the model goes on behind the prompt.
        """
        key = f"text {text}"  # a chat begins with a bracket
        prompt = self.prompt_cache.get(key)
        if prompt is None:
            prompt = self._encode(text, add_special_tokens=True)
            prompt = replace(prompt, token_ids=self._to_go_on_from(prompt.token_ids, text))
            self.prompt_cache.put(key, prompt)
        return prompt

    def _to_go_on_from(self, token_ids: list[int], text: str) -> list[int]:
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        begins_twice = begin is not None and token_ids[:2] == [begin, begin]
        if not begins_twice and token_ids[-1:] != [end]:
            return token_ids
        plain = self._encode(text, add_special_tokens=False).token_ids
        if begins_twice and plain[:1] == [begin]:
            return plain
        is_added = bool(plain) and token_ids[-len(plain) - 1 : -1] == plain
        return token_ids[:-1] if is_added else token_ids

    def decode(self, token_ids: list[int]) -> str:
        """Decodes tokens to text without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _encode(
        self, text: str, *, add_special_tokens: bool, parts: Sequence[ChatPart] = ()
    ) -> Prompt:
        encoding = self._tokenizer(text, add_special_tokens=add_special_tokens)
        return Prompt(
            text=text,
            token_ids=list(encoding["input_ids"]),
            role_spans=role_spans(parts, encoding),
        )


def load_tokenizer(
    model_path: str,
    chat_template: str | None,
    *,
    template_kwargs: JsonObject | None = None,
    max_cached_tokens: int = MAX_CACHED_TOKENS,
    trusts_code: bool = False,
) -> HuggingFaceTokenizer:
    """Loads it; raises UserError when there is no tokenizer, no chat template or no end token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=trusts_code)
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer of {model_path} cannot be read: {error}") from error
    ends = {tokenizer.eos_token_id, *_generation_config_eos(model_path)} - {None}
    if not ends:
        raise UserError(f"the model {model_path} has no end token; set eos_token in its tokenizer")
    return HuggingFaceTokenizer(
        tokenizer,
        chat_template,
        tuple(sorted(ends)),
        template_kwargs=template_kwargs,
        max_cached_tokens=max_cached_tokens,
    )


def _generation_config_eos(model_path: str) -> list[int | None]:
    """Returns the end tokens of the generation config; chat models often have several."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        return []
    return ends if isinstance(ends, list) else [ends]
