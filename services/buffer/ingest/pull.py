"""Takes messages from the buffer's consumer: all that are there once the first has come."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from trinity.errors import NotReady
from trinity.runtime.nats import preserve_cancellation
from trinity.runtime.subjects import RUNS_CONSUMER, RUNS_STREAM

NEXT_SUBJECT = f"$JS.API.CONSUMER.MSG.NEXT.{RUNS_STREAM}.{RUNS_CONSUMER}"
SLACK_SECONDS = 0.5
"""How much later than it should the broker may say that a request has ended."""
NO_MESSAGES, EXPIRED = "404", "408"


@dataclass(frozen=True, slots=True)
class ResultPull:
    """Requests for messages, each with a reply subject that tells its end from those of others.

    `fetch` of nats-py 2.16 has one reply subject for all. It takes the end of an earlier request
    for that of the present one, which then goes on at the broker: messages answer the one, and the
    other is waited for until its timeout is over, with messages in hand.
    """

    client: Client
    subscription: Subscription
    inbox: str
    _numbers: "count[int]"

    @classmethod
    async def of(cls, client: Client) -> "ResultPull":
        """Subscribes to the replies."""
        inbox = client.new_inbox()
        return cls(client, await client.subscribe(f"{inbox}.*"), inbox, count())

    async def fetch(self, most: int, seconds: float = 5.0) -> list[Msg]:
        """Returns the messages that are there, or waits for one; at least 1, up to `most`.

        Raises: TimeoutError after `seconds` without a message, NotReady when the broker
        ends the request for another reason.
        """
        expires = {"batch": 1, "expires": int(seconds * 1e9)}
        messages = await self._request(expires, 1, seconds + SLACK_SECONDS)
        if not messages:
            raise TimeoutError
        try:
            rest = {"batch": most - 1, "no_wait": True}
            return messages + await self._request(rest, most - 1, seconds)
        except TimeoutError:  # the broker is gone: store these first
            return messages

    async def _request(self, request: Mapping[str, object], most: int, seconds: float) -> list[Msg]:
        messages: list[Msg] = []
        if not most:
            return messages
        reply = f"{self.inbox}.{next(self._numbers)}"
        await self.client.publish(NEXT_SUBJECT, json.dumps(request).encode(), reply)
        while len(messages) < most:
            with preserve_cancellation():
                message = await self.subscription.next_msg(timeout=seconds)
            if not message.subject.startswith(self.inbox):
                messages.append(message)
            elif message.subject == reply:
                _check_end(message)
                break
        return messages


def _check_end(message: Msg) -> None:
    headers = message.headers or {}
    if headers.get("Status") not in (NO_MESSAGES, EXPIRED):
        raise NotReady(f"the broker ended a request for results: {headers}")
