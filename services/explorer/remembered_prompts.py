"""The prompts that chats were encoded as last, for runs that begin with the same one."""

import threading
from collections import OrderedDict

from trinity.workflows.generation import Prompt


class RememberedPrompts:
    """No more than `max_tokens` tokens together, whatever their number; those used last stay.

    Workflows in threads ask too.

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
        """Of all that are remembered."""
        return self._num_tokens

    def get(self, chat: str) -> Prompt | None:
        """What it was encoded as, if that is remembered."""
        with self._lock:
            prompt = self._prompts.get(chat)
            if prompt is not None:
                self._prompts.move_to_end(chat)
            return prompt

    def put(self, chat: str, prompt: Prompt) -> None:
        """Remember it, in the place of others."""
        with self._lock:
            if chat in self._prompts or len(prompt.token_ids) > self._max_tokens:
                return
            self._prompts[chat] = prompt
            self._num_tokens += len(prompt.token_ids)
            while self._num_tokens > self._max_tokens:
                _, oldest = self._prompts.popitem(last=False)
                self._num_tokens -= len(oldest.token_ids)
