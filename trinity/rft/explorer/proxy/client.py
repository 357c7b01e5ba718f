"""Trinity-RFT's client of a model that is trained on its calls.

    client = TrinityClient("http://127.0.0.1:8010/sessions/SECRET")
    answer = client.get_openai_client().chat.completions.create(model=..., messages=...)
    client.feedback(1.0, [answer.id])
    client.commit()

The address of a session is the answer to `POST /sessions`; its secret is the only key.
"""

import uuid
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import openai

NO_KEY = "EMPTY"
ALIVE_SECONDS = 2.0
SECONDS = 10.0
METRICS_SECONDS = 5.0
Told = dict[str, Any]


class TrinityClient:
    """Asks, gives rewards and commits within one session; its `task_id` names a group of calls."""

    def __init__(self, proxy_url: str) -> None:
        self.proxy_url = proxy_url
        self.openai_base_url = f"{proxy_url}/v1"
        self.feedback_url = f"{proxy_url}/feedback"
        self.task_id = uuid.uuid4().hex[:6]

    def alive(self) -> bool:
        """True if the session is there and answers."""
        try:
            answer = httpx.get(f"{self.proxy_url}/health", timeout=ALIVE_SECONDS)
        except httpx.HTTPError:
            return False
        return answer.is_success

    def get_openai_client(self) -> "openai.OpenAI":
        """Returns OpenAI's client for the session."""
        import openai

        return openai.OpenAI(base_url=self.openai_base_url, api_key=NO_KEY)

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """Returns OpenAI's asynchronous client for the session."""
        import openai

        return openai.AsyncOpenAI(base_url=self.openai_base_url, api_key=NO_KEY)

    def feedback(self, reward: float, msg_ids: list[str], timeout: float = SECONDS) -> Told:
        """Rewards answers by their ids."""
        body = self._feedback(reward, msg_ids)
        return _told(httpx.post(self.feedback_url, json=body, timeout=timeout))

    async def feedback_async(
        self,
        reward: float,
        msg_ids: list[str],
        timeout: float = SECONDS,  # noqa: ASYNC109 - theirs
    ) -> Told:
        """Rewards answers by their ids."""
        async with httpx.AsyncClient(timeout=timeout) as client:
            body = self._feedback(reward, msg_ids)
            return _told(await client.post(self.feedback_url, json=body))

    def commit(self, timeout: float = SECONDS) -> Told:
        """Lets the trainer have all rewarded answers."""
        return _told(httpx.post(f"{self.proxy_url}/commit", timeout=timeout))

    async def commit_async(self, timeout: float = SECONDS) -> Told:  # noqa: ASYNC109 - theirs
        """Lets the trainer have all rewarded answers."""
        async with httpx.AsyncClient(timeout=timeout) as client:
            return _told(await client.post(f"{self.proxy_url}/commit"))

    def get_metrics(self, timeout: float = METRICS_SECONDS) -> Told:
        """Returns figures of the session."""
        return _told(httpx.get(f"{self.proxy_url}/metrics", timeout=timeout))

    async def get_metrics_async(
        self,
        timeout: float = METRICS_SECONDS,  # noqa: ASYNC109 - theirs
    ) -> Told:
        """Returns figures of the session.

        Raises: ValueError if there are none.
        """
        async with httpx.AsyncClient(timeout=timeout) as client:
            answer = await client.get(f"{self.proxy_url}/metrics")
        if not answer.is_success:
            raise ValueError(f"there are no figures of the session: {answer.text}")
        return _told(answer)

    def _feedback(self, reward: float, msg_ids: list[str]) -> Told:
        return {"reward": reward, "msg_ids": msg_ids, "task_id": self.task_id}


def _told(answer: httpx.Response) -> Told:
    told: Told = answer.json()
    return told
