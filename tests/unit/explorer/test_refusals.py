"""What either build of vLLM says against a request is told to whoever made it."""

import sys
from types import SimpleNamespace

import pytest

from services.explorer.engine.vllm import as_user_errors
from trinity.errors import UserError


class ClientError(Exception):
    """As newer builds have it, which is no ValueError."""


NEWER = SimpleNamespace(VLLMClientError=ClientError)
FOR_GPUS = SimpleNamespace()


@pytest.mark.parametrize(
    ("build", "said"), [(NEWER, ClientError("too long")), (FOR_GPUS, ValueError("too long"))]
)
def test_a_refusal_is_a_mistake_of_the_request(
    monkeypatch: pytest.MonkeyPatch, build: SimpleNamespace, said: Exception
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(exceptions=build))
    with pytest.raises(UserError, match="refused: too long"), as_user_errors("refused: "):
        raise said


@pytest.mark.parametrize("build", [NEWER, FOR_GPUS])
def test_an_engine_that_dies_is_no_mistake_of_the_request(
    monkeypatch: pytest.MonkeyPatch, build: SimpleNamespace
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(exceptions=build))
    with pytest.raises(RuntimeError, match="dead"), as_user_errors():
        raise RuntimeError("dead")
