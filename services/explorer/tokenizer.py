"""The model's tokenizer: chats to tokens once, tokens to text for people and rewards."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from trinity.errors import UserError
from trinity.types import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


REMEMBERED_CHATS = 4096
"""The runs of a task all begin with the same one."""


class HuggingFaceTokenizer:
    """A `ChatTokenizer` over transformers' tokenizer of a model."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        chat_template: str | None,
        end_token_ids: tuple[int, ...],
        *,
        enable_thinking: bool | None = None,
        num_remembered: int = REMEMBERED_CHATS,
    ) -> None:
        self.end_token_ids = end_token_ids
        self._tokenizer = tokenizer
        self._template = chat_template or tokenizer.chat_template
        if not isinstance(self._template, str):
            raise UserError(
                f"the model {tokenizer.name_or_path} has no chat template; "
                "give one with model.chat_template_path"
            )
        self._switches = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        switched = "".join(f"\0{name}={value}" for name, value in self._switches.items())
        self.template_sha256 = hashlib.sha256((self._template + switched).encode()).digest()
        self._remembered = lru_cache(num_remembered)(self._encode_chat)

    @property
    def plain(self) -> "PreTrainedTokenizerBase":
        """What it stands on."""
        return self._tokenizer

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Apply the chat template; a last message of the assistant is continued."""
        return self._remembered(json.dumps([messages, list(tools)]))

    def _encode_chat(self, chat_json: str) -> Prompt:
        messages, tools = json.loads(chat_json)
        continues = messages[-1]["role"] == "assistant"
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=not continues,
                continue_final_message=continues,
                **self._switches,
            )
        except TemplateError as error:  # templates raise it themselves, for roles out of turn
            raise UserError(f"the chat template does not take these messages: {error}") from error
        return self._encode(str(text), add_special_tokens=False)

    def encode(self, text: str) -> Prompt:
        """Tokens of plain text, with what the tokenizer puts before a text."""
        return self._encode(text, add_special_tokens=True)

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _encode(self, text: str, *, add_special_tokens: bool) -> Prompt:
        token_ids = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return Prompt(text=text, token_ids=list(token_ids))


def load_tokenizer(
    model_path: str,
    chat_template: str | None,
    *,
    enable_thinking: bool | None = None,
    num_remembered: int = REMEMBERED_CHATS,
) -> HuggingFaceTokenizer:
    """Raises: UserError when the model has no tokenizer, no chat template or no end token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        raise UserError(f"the tokenizer of {model_path} cannot be read: {error}") from error
    ends = {tokenizer.eos_token_id, *_configured_ends(model_path)} - {None}
    if not ends:
        raise UserError(f"the model {model_path} has no end token; set eos_token in its tokenizer")
    return HuggingFaceTokenizer(
        tokenizer,
        chat_template,
        tuple(sorted(ends)),
        enable_thinking=enable_thinking,
        num_remembered=num_remembered,
    )


def _configured_ends(model_path: str) -> list[int | None]:
    """End tokens of the generation config, of which chat models often have several."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:
        return []
    return ends if isinstance(ends, list) else [ends]
