"""An agent of many turns, as a program: `python talking_agent.py`, with the variables of its run.

It writes down each answer that it has received completely, every other one over a stream.
"""

import json
import os
import time
import urllib.error
import urllib.request

NUM_TURNS = 40
RETRY_SECONDS = 0.2
NOT_STORED = 503


class BrokenOffError(Exception):
    """A stream without its end."""


def main() -> None:
    """Asks so many times, each time about everything that was said before."""
    chat: list[dict[str, str]] = []
    for number in range(NUM_TURNS):
        chat.append({"role": "user", "content": f"{os.environ['TRINITY_PROMPT']} {number}"})
        name, said = _ask(chat, streams=number % 2 == 1)
        _write_down(chat, name, said)
        chat.append({"role": "assistant", "content": said})


def _ask(chat: list[dict[str, str]], *, streams: bool) -> tuple[str, str]:
    """Returns the name and the text of an answer; asks again where told to."""
    body = {"model": os.environ["TRINITY_MODEL"], "messages": chat, "stream": streams}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions", json.dumps(body).encode(), headers
    )
    while True:
        try:
            with urllib.request.urlopen(request) as response:
                return _received(response.read(), streams=streams)
        except BrokenOffError:
            pass
        except urllib.error.HTTPError as error:
            if error.code != NOT_STORED:
                raise
        time.sleep(RETRY_SECONDS)


def _received(body: bytes, *, streams: bool) -> tuple[str, str]:
    if not streams:
        answer = json.loads(body)
        return answer["id"], answer["choices"][0]["message"]["content"]
    told = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    if told[-1] != "[DONE]":
        raise BrokenOffError
    chunks = [json.loads(line) for line in told[:-1]]
    texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    return chunks[0]["id"], "".join(texts)


def _write_down(chat: list[dict[str, str]], name: str, said: str) -> None:
    secret = os.environ["OPENAI_BASE_URL"].split("/sessions/")[1].split("/")[0]
    line = {"session": secret, "id": name, "chat": chat, "said": said, "at": time.time()}
    with open(os.environ["ANSWERS"], "a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
