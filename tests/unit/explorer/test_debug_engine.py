"""The engine of `trinity debug` that another release of this program started."""

import json
import socket
import threading
from pathlib import Path

import pytest

from services.explorer.debug.client import DebugTokenizer
from trinity.errors import UserError


def answer_once(listening: socket.socket, answer: object) -> None:
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as requests:
        requests.readline()
        connection.sendall(json.dumps({"id": 0, "ok": answer}).encode() + b"\n")


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "engine"


def test_one_of_an_earlier_release_is_to_be_started_again(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        engine = threading.Thread(target=answer_once, args=(listening, ["00" * 32]))
        engine.start()
        with pytest.raises(UserError, match="stop it and start it again"):
            DebugTokenizer(address, 0)
        engine.join()
