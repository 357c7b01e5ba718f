"""Finds tool calls and reasoning in responses with vLLM's parsers."""

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
    """A parsed response."""

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
        """Returns true if a response may be more than its plain text."""
        return self.reasoning is not None or (has_tools and self.tools is not None)

    def read(self, answer: Experience, tools: Sequence[JsonObject]) -> Said:
        """Parses a whole response, including its special tokens."""
        asked = _as_vllm_has_it(tools)
        parsed = Said(content=self._text_of(answer))
        if self.reasoning is not None:
            parser = self.reasoning(self.tokenizer.plain)
            reasoning, content = parser.extract_reasoning(parsed.content or "", asked)
            parsed = Said(content=content, reasoning=reasoning)
        if self.tools is not None and tools:
            parsed = self._with_calls(parsed, asked)
        return parsed

    def _with_calls(self, parsed: Said, asked: "ChatCompletionRequest") -> Said:
        assert self.tools is not None
        parser = self.tools(self.tokenizer.plain, list(asked.tools or ()))
        found = parser.extract_tool_calls(parsed.content or "", asked)
        if not found.tools_called:
            return parsed
        calls: list[JsonObject] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in found.tool_calls
        ]
        return Said(content=found.content or None, reasoning=parsed.reasoning, tool_calls=calls)

    def _text_of(self, answer: Experience) -> str:
        """Returns the text up to the end token, or up to a stop text."""
        if answer.sampling is not None and answer.sampling.stop:
            return answer.response_text
        sequence = answer.sequence
        tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
        while tokens and tokens[-1] in self.tokenizer.end_token_ids:
            tokens.pop()
        return str(self.tokenizer.plain.decode(tokens, skip_special_tokens=False))


def load_parsers(rollout: EngineConfig, tokenizer: HuggingFaceTokenizer) -> ResponseParsers | None:
    """Loads the configured parsers, which are heavy to import.

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
    """Returns a vLLM request with the tools, which the parsers read from it."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    values: JsonObject = {"messages": [{"role": "user", "content": ""}]}
    if tools:
        values |= {"tools": list(tools), "tool_choice": "auto"}
    return ChatCompletionRequest.model_validate(values)
