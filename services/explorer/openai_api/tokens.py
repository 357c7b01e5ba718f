"""Tokens in, tokens out: vLLM's `/inference/v1/generate`."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.completions import (
    CompletionCall,
    CompletionRequest,
    CompletionStreamWriter,
    read_completion,
)
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.response import (
    finish_reason,
    json_logprob,
    prompt_logprobs_of,
    prompt_tokens,
    response_tokens,
    top_logprobs_of,
    usage_of,
)
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.generation import GenerationDelta, Likeliest
from trinity.workflows.model import ModelWrapper


def read_tokens_request(body: object) -> tuple[str | None, CompletionRequest]:
    """Returns the request's name, if it has one, and the same request for a completion.

    Raises: InvalidApiRequest naming the key.
    """
    if not isinstance(body, dict) or not isinstance(body.get("sampling_params"), dict):
        raise InvalidApiRequest("`sampling_params` is not an object", param="sampling_params")
    if not isinstance(body.get("token_ids"), list):
        raise InvalidApiRequest("`token_ids` is not a list of tokens", param="token_ids")
    if body.get("features") or body.get("content_parts"):
        raise InvalidApiRequest("images are not taken here", param="features")
    outer = {key: body[key] for key in ("model", "stream", "stream_options") if key in body}
    request = read_completion({**body["sampling_params"], **outer, "prompt": body["token_ids"]})
    if not request.generates:
        raise InvalidApiRequest("`max_tokens` is at least 1 here", param="max_tokens")
    name = body.get("request_id")
    return name if isinstance(name, str) else None, request


class TokensCall(CompletionCall):
    """Continues one list of tokens."""

    def __init__(self, body: object, writer: ResponseWriter) -> None:
        self._name, request = read_tokens_request(body)
        super().__init__(request=request, writer=writer)

    async def complete_response(self, model: ModelWrapper) -> Callable[[], JsonObject]:
        """Generates, and returns the writer of the complete answer."""
        request, writer = self._request, self.stream_writer(model)
        answers = await writer.generate(None)
        scores = None
        if request.num_scored is not None:
            prompt = prompt_tokens(answers[0])
            scores = await model.score_async(prompt, num_likeliest=request.num_scored)

        def write() -> JsonObject:
            body = writer.body(answers)
            if scores is not None:
                logprobs = prompt_logprobs_of(
                    prompt_tokens(answers[0]), scores, self._writer.tokenizer
                )
                body["prompt_logprobs"] = [*logprobs]
            return body

        return write

    def stream_writer(self, model: ModelWrapper) -> "TokenEvents":
        """Returns the writer of a streamed answer."""
        events = TokenEvents(request=self._request, writer=self._writer, model=model)
        events.name = self._name
        return events


class TokenEvents(CompletionStreamWriter):
    """Writes the events of a streamed answer, and the body of a complete one."""

    name: str | None = None
    """The name that the request gave."""

    @cached_property
    def _head(self) -> JsonObject:
        return {"request_id": self.name or self._model.answer_id}

    def body(self, answers: Sequence[Experience]) -> JsonObject:
        """Returns the complete answer."""
        choices = [
            self._choice(
                index,
                response_tokens(answer),
                answer.sequence.rollout_logprobs.tolist(),
                top_logprobs_of(answer),
                finish_reason(answer),
            )
            for index, answer in enumerate(answers)
        ]
        tokens = usage_of(answers, self._request.num_choices)
        return {**self._head, "choices": [*choices], "usage": tokens, "prompt_logprobs": None}

    def delta_events(self, index: int, delta: GenerationDelta) -> Iterator[JsonObject]:
        """Yields the new tokens."""
        choice = self._choice(index, delta.token_ids, delta.logprobs, delta.likeliest, None)
        yield {**self._head, "choices": [choice]}

    def answer_end_events(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the finish reason."""
        choice = self._choice(index, [], [], [], finish_reason(answer))
        yield {**self._head, "choices": [choice]}

    def _choice(
        self,
        index: int,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        likeliest: Likeliest,
        reason: str | None,
    ) -> JsonObject:
        choice: JsonObject = {"index": index, "token_ids": [*tokens], "finish_reason": reason}
        if self._request.logprobs is None:
            return {**choice, "logprobs": None}
        others = likeliest or [[]] * len(tokens)
        content: list[JsonValue] = [
            {**_scored(token, logprob), "top_logprobs": [_scored(*top) for top in tops]}
            for token, logprob, tops in zip(tokens, logprobs, others, strict=True)
        ]
        return {**choice, "logprobs": {"content": [*content]}}


def _scored(token: int, logprob: float) -> JsonObject:
    """Returns a token as vLLM names it, whose text is not looked at."""
    return {"token": f"token_id:{token}", "logprob": json_logprob(logprob), "bytes": None}
