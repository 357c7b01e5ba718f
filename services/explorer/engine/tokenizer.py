"""The Hugging Face tokenizer of a model, with a cache of encoded chats and the roles in prompts."""

import hashlib
import json
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trinity.data.chat_template import (
    NOT_RENDERED,
    ChatPart,
    ChatRoles,
    render_with_calls,
    template_variables,
)
from trinity.data.conversations import FAMILIES
from trinity.data.images import images_of, part_of
from trinity.data.vision import VisionProcessor
from trinity.errors import UserError
from trinity.types import JsonObject, RoleSpan
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase
MAX_CACHED_TOKENS = 1 << 20
"""Size of the cache of chats, which runs of a task share; a token takes some 50 bytes."""


def role_spans(parts: Sequence[ChatPart], encoding: "BatchEncoding") -> tuple[RoleSpan, ...]:
    """Converts parts of a text to spans of its tokens; empty if the tokenizer has no offsets.

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
        vision: VisionProcessor | None = None,
    ) -> None:
        self.end_token_ids = end_token_ids
        self.vision = vision
        """The processor of a model that reads images."""
        self.image_tokens: dict[bytes, int] = {}
        """Number of tokens of each image that was loaded, by its hash."""
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
            prompt = self._with_images(self._encode_chat(chat), messages)
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

        def render(taken: Sequence[dict[str, Any]]) -> str:
            return str(
                self._tokenizer.apply_chat_template(
                    list(taken),
                    chat_template=self._template,
                    tokenize=False,
                    continue_final_message=continues,
                    **variables,
                )
            )

        try:
            text, messages = render_with_calls(render, messages, self._template)
        except NOT_RENDERED as error:
            raise UserError(f"the chat template does not take these messages: {error}") from error
        variables = {**self._tokenizer.special_tokens_map, **variables}
        parts = self._roles.parts(text, messages, variables)
        return self._encode(text, add_special_tokens=False, parts=parts)

    def _with_images(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """Expands the placeholders of images.

        Raises: UserError for an image that was not loaded, or a place without an image.
        """
        refs = images_of(messages)
        if self.vision is None:
            if refs:
                raise UserError(
                    "a message has an image, and this model reads text alone: choose one of "
                    f"{', '.join(FAMILIES)}, or leave `format.image_key` out"
                )
            return prompt
        if any(ref.sha256 not in self.image_tokens for ref in refs):
            raise UserError(
                "an image of this chat is not loaded: ask the model with the chat first"
            )
        counts = [self.image_tokens[ref.sha256] for ref in refs]
        repeats_L = self.vision.tokens.repeats(prompt.token_ids, counts)
        ends = [0, *np.cumsum(repeats_L).tolist()]
        return replace(
            prompt,
            token_ids=np.repeat(prompt.token_ids, repeats_L).tolist(),
            role_spans=tuple(
                RoleSpan(role=span.role, start=ends[span.start], end=ends[span.end])
                for span in prompt.role_spans
            ),
            images=tuple(part_of(ref) for ref in refs),
        )

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
            prompt = self._with_images(prompt, ())
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
        vision=VisionProcessor.of_model(model_path),
    )


def _generation_config_eos(model_path: str) -> list[int | None]:
    """Returns the end tokens of the generation config; chat models often have several."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        return []
    return ends if isinstance(ends, list) else [ends]
