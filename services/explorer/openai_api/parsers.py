"""Calls of tools and thoughts in a response, found by vLLM's parsers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.explorer.tokenizer import HuggingFaceTokenizer
from trinity.config.rollout_model import EngineConfig
from trinity.errors import UserError
from trinity.types import Experience, JsonObject

if TYPE_CHECKING:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParser
    from vllm.tool_parsers import ToolParser


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A response, taken apart."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[JsonObject] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseParsers:
    """The parsers of one model; either may be missing. Use `load_parsers` to make them."""

    tokenizer: HuggingFaceTokenizer
    tools: "type[ToolParser] | None"
    reasoning: "type[ReasoningParser] | None"

    def takes_apart(self, has_tools: bool) -> bool:
        """Whether a response may be anything but its text."""
        return self.reasoning is not None or (has_tools and self.tools is not None)

    def read(self, answer: Experience, tools: Sequence[JsonObject]) -> Said:
        """Take a whole response apart; its special tokens are looked at too."""
        asked = _as_vllm_has_it(tools)
        said = Said(content=self._text_of(answer))
        if self.reasoning is not None:
            parser = self.reasoning(self.tokenizer.plain)
            reasoning, content = parser.extract_reasoning(said.content or "", asked)
            said = Said(content=content, reasoning=reasoning)
        if self.tools is not None and tools:
            said = self._with_calls(said, asked)
        return said

    def _with_calls(self, said: Said, asked: "ChatCompletionRequest") -> Said:
        assert self.tools is not None
        parser = self.tools(self.tokenizer.plain, list(asked.tools or ()))
        found = parser.extract_tool_calls(said.content or "", asked)
        if not found.tools_called:
            return said
        calls: list[JsonObject] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in found.tool_calls
        ]
        return Said(content=found.content or None, reasoning=said.reasoning, tool_calls=calls)

    def _text_of(self, answer: Experience) -> str:
        """Up to the end token, or as far as a text to stop at lets it go."""
        if answer.sampling is not None and answer.sampling.stop:
            return answer.response_text
        sequence = answer.sequence
        tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
        while tokens and tokens[-1] in self.tokenizer.end_token_ids:
            tokens.pop()
        return str(self.tokenizer.plain.decode(tokens, skip_special_tokens=False))


def load_parsers(rollout: EngineConfig, tokenizer: HuggingFaceTokenizer) -> ResponseParsers | None:
    """Those that are named; heavy to import.

    Raises: UserError when vLLM has none of that name, or it does not suit the model.
    """
    if not rollout.enable_auto_tool_choice and rollout.reasoning_parser is None:
        return None
    tools = _tool_parser(rollout.tool_call_parser) if rollout.enable_auto_tool_choice else None
    reasoning = _reasoning_parser(rollout.reasoning_parser)
    try:
        for parser in (tools, reasoning):
            if parser is not None:
                parser(tokenizer.plain)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            "the model's tokenizer does not suit the parser that is named in "
            f"`explorer.rollout_model`: {error}"
        ) from error
    return ResponseParsers(tokenizer=tokenizer, tools=tools, reasoning=reasoning)


def _tool_parser(name: str | None) -> "type[ToolParser] | None":
    from vllm.tool_parsers import ToolParserManager

    if name is None:
        return None
    try:
        found: type[ToolParser] = ToolParserManager.get_tool_parser(name)
    except (KeyError, ImportError) as error:
        raise UserError(
            f"vLLM has no parser `{name}` (`explorer.rollout_model.tool_call_parser`): {error}"
        ) from error
    return found


def _reasoning_parser(name: str | None) -> "type[ReasoningParser] | None":
    from vllm.reasoning import ReasoningParserManager

    if name is None:
        return None
    try:
        found: type[ReasoningParser] = ReasoningParserManager.get_reasoning_parser(name)
    except (KeyError, ImportError) as error:
        raise UserError(
            f"vLLM has no parser `{name}` (`explorer.rollout_model.reasoning_parser`): {error}"
        ) from error
    return found


def _as_vllm_has_it(tools: Sequence[JsonObject]) -> "ChatCompletionRequest":
    """Parsers look at the tools of the request that they are given."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    values: JsonObject = {"messages": [{"role": "user", "content": ""}]}
    if tools:
        values |= {"tools": list(tools), "tool_choice": "auto"}
    return ChatCompletionRequest.model_validate(values)
