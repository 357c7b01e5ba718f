"""A model that scores and that others serve: vLLM's `/classify` and `/pooling`, asked over HTTP."""

import json
from http import HTTPStatus

from services.explorer.engine.external import ExternalEngine, RetryableError
from services.explorer.engine.scorer import FrozenScorer
from trinity.errors import UserError
from trinity.types import JsonObject
from trinity.workflows.generation import RatedChat

CLASSIFY, POOLING = "/classify", "/pooling"


class _NotServed(Exception):
    """The server has no `/classify`: it may pool tokens alone."""


class ExternalScorer(FrozenScorer, ExternalEngine):
    """Sends chats, to which the server applies its own tokenizer and chat template.

    A whole chat is scored by `/classify`, or by the last row of `/pooling` where the server has no
    `/classify`. Steps are scored by a server that pools the tag after each of them.
    """

    _is_classified = True
    """False once the server got requests for scores of tokens, perhaps as it has no `/classify`."""

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of each step, or of the chat; errors are those of `generate`."""
        if self._is_classified and not chat.step_ends:
            try:
                return await self._ask(self._at(CLASSIFY), self._body(chat), _parse_classes)
            except _NotServed:
                pass
        self._is_classified = False
        body = {**self._body(chat), "task": "token_classify"}
        rows = await self._ask(self._at(POOLING), body, _parse_pooled)
        if not chat.step_ends:
            return rows[-1:]
        if len(rows) != len(chat.step_ends):
            raise UserError(
                f"the model `{self._access.name}`, which others serve, returned {len(rows)} scores "
                f"for {len(chat.step_ends)} steps: have its server pool the tag after each step "
                "alone, as with vLLM's pooling type STEP and `step_tag_id`"
            )
        return rows

    def _at(self, path: str) -> str:
        """Returns the address of a path, which is not below OpenAI's `/v1`."""
        return f"{self._access.address.removesuffix('/v1')}{path}"

    def _body(self, chat: RatedChat) -> JsonObject:
        return {
            "model": self._access.name,
            "messages": [{"role": m["role"], "content": m["content"]} for m in chat.messages],
            "add_generation_prompt": False,
            "use_activation": False,
            **self._fields,
        }

    def _error_of_response(self, status: int, retry_after: str | None, text: str) -> Exception:
        if status == HTTPStatus.NOT_FOUND and self._is_classified:
            return _NotServed()
        return super()._error_of_response(status, retry_after, text)


def _parse_classes(text: str) -> list[list[float]]:
    try:
        return [[float(value) for value in json.loads(text)["data"][0]["probs"]]]
    except (ValueError, LookupError, TypeError) as error:
        raise RetryableError("an answer that is no classification") from error


def _parse_pooled(text: str) -> list[list[float]]:
    """Returns a row for each pooled token; one of a single number may be that number."""
    try:
        data = json.loads(text)["data"][0]["data"]
        rows = [[float(v) for v in (row if isinstance(row, list) else [row])] for row in data]
    except (ValueError, LookupError, TypeError) as error:
        raise RetryableError("an answer that is no pooling") from error
    if not rows:
        raise RetryableError("an answer without scores")
    return rows
