"""An agent that is a program: it adds, checks itself the other way round, and asks again in doubt.

    python agent.py "47+38="      # asks at OPENAI_BASE_URL with OPENAI_API_KEY

It knows nothing of the training: its last answer is scored.
"""

import json
import os
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

TRIES = 2
"""Checks of an answer that differ from it until the agent leaves it."""


def main(question: str) -> None:
    """Prints the sum."""
    first, second = question.removesuffix("=").split("+")
    chat = [user(question)]
    answer = ask(chat)
    chat += [{"role": "assistant", "content": answer}, user(f"{second}+{first}=")]
    for _ in range(TRIES):
        if (check := ask(chat)) == answer:
            break
    print(check)


def user(text: str) -> dict[str, str]:
    """Returns a message."""
    return {"role": "user", "content": text}


def ask(chat: list[dict[str, str]]) -> str:
    """Returns the model's answer to a chat."""
    place = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = HTTPConnection(place.netloc)
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    }
    body = json.dumps({"model": os.environ["TRINITY_MODEL"], "messages": chat})
    connection.request("POST", f"{place.path}/chat/completions", body, headers)
    response = connection.getresponse()
    answer = json.load(response)
    if response.status >= 400:
        sys.exit(f"the model did not answer: {answer}")
    content: str = answer["choices"][0]["message"]["content"]
    return content


if __name__ == "__main__":
    main(sys.argv[1])
