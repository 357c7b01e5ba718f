"""Incremental text of a response."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from services.explorer.openai_api.chat import ChatRequest, Writer, logprobs_of
from services.explorer.openai_api.response import fingerprint_of, prompt_tokens, usage_of
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import Piece
from trinity.workflows.model import HeardOf, ModelWrapper
from trinity.workflows.sampling import until_stop


class TextStream:
    """Releases text once it is certain: no partial character, and no part of a stop text.

    text = stream.add([12, 7])  # text that is certain now
    rest = stream.end(whole)    # the remainder of the whole response
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

    def add(self, token_ids: Sequence[int]) -> str:
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
        shown = until_stop(waiting, self._stop)
        if shown == waiting:
            shown = waiting[: max(0, len(waiting) - self._held_back)]
        self._num_shown += len(shown)
        return shown


class ChatExchange:
    """One checked chat request and its answer."""

    def __init__(self, *, asked: ChatRequest, writer: Writer) -> None:
        writer.check(asked)
        self._asked = asked
        self._writer = writer
        self.model, self.seed, self.streams = asked.model, asked.seed, asked.streams

    async def answer(self, model: ModelWrapper) -> JsonObject:
        """Returns the complete answer."""
        asked = self._asked
        answers = await model.chat_async(
            asked.messages, n=asked.num_choices, tools=asked.tools, **asked.sampling
        )
        scores = None
        if asked.prompt_logprobs is not None:
            tokens = prompt_tokens(answers[0])
            scores = await model.score_async(tokens, num_likeliest=asked.prompt_logprobs)
        return self._writer.answer(asked, answers, scores)

    def teller(self, model: ModelWrapper) -> "ChatTeller":
        """Returns the writer of a streamed answer."""
        return ChatTeller(asked=self._asked, writer=self._writer, model=model)


class ChatTeller:
    """Writes the events of a chat completion.

    If tool calls or reasoning are parsed from a response, it is sent in one piece.
    """

    def __init__(self, *, asked: ChatRequest, writer: Writer, model: ModelWrapper) -> None:
        self._asked = asked
        self._writer = writer
        self._model = model
        stop = model.stops_at(asked.sampling)
        self._texts = [TextStream(writer.tokenizer.decode, stop) for _ in range(asked.num_choices)]
        self._head: JsonObject = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": writer.model_path,
            "system_fingerprint": fingerprint_of(*model.weights),
        }

    async def make(self, heard: HeardOf) -> list[Experience]:
        """Generates the answers, and passes their pieces to `heard`."""
        asked = self._asked
        return await self._model.chat_async(
            asked.messages, n=asked.num_choices, tools=asked.tools, heard=heard, **asked.sampling
        )

    def opening(self) -> Iterator[JsonObject]:
        """Yields chunks with the role of each answer."""
        for index in range(self._asked.num_choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, piece: Piece) -> Iterator[JsonObject]:
        """Yields the part of the answer that is certain by now."""
        if self._writer.takes_apart(self._asked):
            return
        text = self._texts[index].add(piece.token_ids)
        logprobs = None
        if self._asked.wants_logprobs:
            logprobs = logprobs_of(
                piece.token_ids, piece.logprobs, piece.likeliest, self._writer.tokenizer
            )
        if text or logprobs:
            yield self._chunk(index, {"content": text}, logprobs=logprobs)

    def end(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of an answer and its finish reason."""
        message, reason = self._writer.message(answer, self._asked)
        if self._writer.takes_apart(self._asked):
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
        logprobs = self._writer.logprobs(answer) if self._asked.wants_logprobs else None
        if delta or logprobs:
            yield self._chunk(index, delta, logprobs=logprobs)

    def closing(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the token usage, if it was requested."""
        if self._asked.includes_usage:
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
        more: JsonObject = {"usage": None} if self._asked.includes_usage else {}
        return {**self._head, "choices": [choice], **more}
