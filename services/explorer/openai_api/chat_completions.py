"""Answers chat requests, at once or as a stream of events."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from services.explorer.openai_api.chat import ChatRequest, ResponseWriter, logprobs_of
from services.explorer.openai_api.errors import CONTEXT_LENGTH, InvalidApiRequest, OpenAiEnding
from services.explorer.openai_api.response import (
    check_cacheable,
    prompt_tokens,
    response_tokens,
    usage_of,
    weights_fingerprint,
)
from trinity.data.images import images_of
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.experience_builder import SamplingOverrides, truncate_at_stop
from trinity.workflows.generation import GenerationDelta, Prompt
from trinity.workflows.model import ModelWrapper, OnIndexedDelta


def fill_lengths(
    sampling: SamplingOverrides, model: ModelWrapper, prompts: Iterable[Prompt], *, param: str
) -> SamplingOverrides:
    """Returns the parameters of a call whose only limit is the model's length, as vLLM has it.

    Without `max_tokens` an answer may take all that its prompt leaves.

    Raises: InvalidApiRequest when a prompt leaves no room for an answer.
    """
    limits = model.limits
    if not limits.is_known:
        return sampling
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest >= limits.max_model_len:
        raise InvalidApiRequest(
            f"this model's maximum context length is {limits.max_model_len} tokens, and the prompt "
            f"has {longest}: shorten it",
            param=param,
            code=CONTEXT_LENGTH,
        )
    filled = SamplingOverrides(
        max_tokens=limits.max_model_len, min_tokens=0, max_prompt_tokens=limits.max_model_len - 1
    )
    return {**filled, **sampling}


class TextStream:
    """Releases text once it is certain: no partial character, and no part of a stop text.

    text = stream.feed_tokens([12, 7])  # text that is certain now
    rest = stream.end(whole)            # the remainder of the whole response
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._held_back = max((len(text) for text in stop), default=1) - 1
        self._tokens: list[int] = []
        self._before = 0
        self._read = 0
        self._text = ""
        self._num_shown = 0

    def feed_tokens(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these tokens make certain.

        A few earlier tokens are decoded with the new ones, whose text depends on them.
        """
        self._tokens += token_ids
        known = self._decode(self._tokens[self._before : self._read])
        more = self._decode(self._tokens[self._before :])
        if len(more) > len(known) and not more.endswith("\ufffd"):
            self._text += more[len(known) :]
            self._before, self._read = self._read, len(self._tokens)
        return self._certain()

    def end(self, whole: str) -> str:
        """Returns the rest of the response, which was decoded in one piece."""
        return whole[self._num_shown :]

    def _certain(self) -> str:
        """Returns the new text before a stop text, without a tail that may begin one."""
        waiting = self._text[self._num_shown :]
        shown = truncate_at_stop(waiting, self._stop)
        if shown == waiting:
            shown = waiting[: max(0, len(waiting) - self._held_back)]
        self._num_shown += len(shown)
        return shown


class ChatCall:
    """Answers one chat request, which it checks first."""

    def __init__(self, *, request: ChatRequest, writer: ResponseWriter) -> None:
        writer.check_supported(request)
        self._request = request
        self._writer = writer
        self.model, self.seed, self.streams = request.model, request.seed, request.streams
        self.has_logprobs = request.wants_logprobs or request.prompt_logprobs is not None
        self.json_schema = request.sampling.get("json_schema", "")
        has_images = bool(images_of(request.messages))  # they are loaded with a model
        asked = [] if has_images else request.messages
        self.num_characters = len(json.dumps([asked, request.tools]))

    def encode_prompts(self) -> None:
        """Encodes the messages into the tokenizer's cache."""
        check_cacheable(self.prompt)

    @property
    def prompt(self) -> Prompt:
        """The prompt, with the tools."""
        return self._writer.tokenizer.encode_chat(self._request.messages, self._request.tools)

    def told_of(self, answer: Experience) -> JsonValue:
        """Returns the message that the client gets, with its reason."""
        return [*self._writer.message(answer, self._request)]

    def tell_again(self, answer: Experience, told: JsonValue) -> None:
        """Lets the client get this message, which was made of the answer before."""
        match told:
            case [dict() as message, str() as reason, *_]:
                self._writer.told[answer] = message, reason

    async def complete_response(self, model: ModelWrapper) -> Callable[[], JsonObject]:
        """Generates, and returns the writer of the complete answer."""
        request = self._request
        answers = await model.chat_async(
            request.messages,
            n=request.num_choices,
            tools=request.tools,
            **sampling_of(request, model, self._writer),
        )
        scores = None
        if request.prompt_logprobs is not None:
            tokens = prompt_tokens(answers[0])
            scores = await model.score_async(tokens, num_likeliest=request.prompt_logprobs)
        own_id = model.answer_id
        return lambda: self._writer.response_body(request, answers, scores, own_id)

    def stream_writer(self, model: ModelWrapper) -> "ChatStreamWriter":
        """Returns the writer of a streamed answer."""
        return ChatStreamWriter(request=self._request, writer=self._writer, model=model)


def sampling_of(
    request: ChatRequest, model: ModelWrapper, writer: ResponseWriter
) -> SamplingOverrides:
    """Returns the sampling parameters of a request; raises InvalidApiRequest for a long prompt."""
    prompt = writer.tokenizer.encode_chat(request.messages, request.tools)
    return fill_lengths(request.sampling, model, [prompt], param="messages")


class ChatStreamWriter(OpenAiEnding):
    """Writes the events of a chat completion.

    If tool calls or reasoning are parsed from a response, it is sent in one piece.
    """

    def __init__(
        self, *, request: ChatRequest, writer: ResponseWriter, model: ModelWrapper
    ) -> None:
        self._request = request
        self._writer = writer
        self._model = model
        self._sampling = sampling_of(request, model, writer)
        self._stop = model.stop_texts(request.sampling)
        self._texts = [
            TextStream(writer.tokenizer.decode, self._stop) for _ in range(request.num_choices)
        ]
        self.model_path = writer.model_path

    @cached_property
    def answer_id(self) -> str:
        """The name of the answers, which is known once there is one."""
        return self._model.answer_id

    @cached_property
    def _head(self) -> JsonObject:
        return {
            "id": f"chatcmpl-{self.answer_id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self.model_path,
            "system_fingerprint": weights_fingerprint(*self._model.weights),
        }

    @property
    def num_prompt_tokens(self) -> int:
        """The length of the prompt."""
        prompt = self._writer.tokenizer.encode_chat(self._request.messages, self._request.tools)
        return len(prompt.token_ids)

    def message_of(self, answer: Experience) -> tuple[JsonObject, str]:
        """Returns the message of an answer and its finish reason."""
        return self._writer.message(answer, self._request)

    def stop_text_of(self, answer: Experience) -> str | None:
        """Returns the stop text that ended an answer."""
        if not self._stop:
            return None
        shown = len(answer.response_text)
        rest = self._writer.tokenizer.decode(response_tokens(answer))[shown:]
        return next((text for text in self._stop if rest.startswith(text)), None)

    async def generate(self, on_delta: OnIndexedDelta | None) -> list[Experience]:
        """Generates the answers, and passes their deltas to `on_delta`."""
        request = self._request
        return await self._model.chat_async(
            request.messages,
            n=request.num_choices,
            tools=request.tools,
            on_delta=on_delta,
            **self._sampling,
        )

    def opening_events(self) -> Iterator[JsonObject]:
        """Yields chunks with the role of each answer."""
        for index in range(self._request.num_choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def delta_events(self, index: int, delta: GenerationDelta) -> Iterator[JsonObject]:
        """Yields the part of the answer that is certain by now."""
        if self._writer.parses_response(self._request):
            return
        text = self._texts[index].feed_tokens(delta.token_ids)
        logprobs = None
        if self._request.wants_logprobs:
            logprobs = logprobs_of(
                delta.token_ids, delta.logprobs, delta.likeliest, self._writer.tokenizer
            )
        if text or logprobs:
            yield self._chunk(index, {"content": text}, logprobs=logprobs)

    def answer_end_events(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of an answer and its finish reason."""
        message, reason = self._writer.message(answer, self._request)
        if self._writer.parses_response(self._request):
            yield from self._in_one_piece(index, message, answer)
        elif rest := self._texts[index].end(answer.response_text):
            yield self._chunk(index, {"content": rest})
        yield self._chunk(index, {}, reason=reason)

    def _in_one_piece(
        self, index: int, message: JsonObject, answer: Experience
    ) -> Iterator[JsonObject]:
        delta: JsonObject = {k: v for k, v in message.items() if k != "role" and v}
        calls = delta.get("tool_calls", [])
        if isinstance(calls, list) and calls:
            delta["tool_calls"] = [
                {"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)
            ]
        logprobs = self._writer.logprobs(answer) if self._request.wants_logprobs else None
        if delta or logprobs:
            yield self._chunk(index, delta, logprobs=logprobs)

    def closing_events(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the token usage, if it was requested."""
        if self._request.includes_usage:
            yield {**self._head, "choices": [], "usage": usage_of(answers, len(answers))}

    def _chunk(
        self,
        index: int,
        delta: JsonObject,
        *,
        logprobs: list[JsonObject] | None = None,
        reason: str | None = None,
    ) -> JsonObject:
        choice: JsonObject = {
            "index": index,
            "delta": delta,
            "logprobs": None if logprobs is None else {"content": [*logprobs]},
            "finish_reason": reason,
        }
        more: JsonObject = {"usage": None} if self._request.includes_usage else {}
        return {**self._head, "choices": [choice], **more}
