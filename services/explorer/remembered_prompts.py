"""A cache of encoded chats, for runs that begin with the same prompt."""

import threading
from collections import OrderedDict

from trinity.workflows.generation import Prompt


class RememberedPrompts:
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
