"""The outline of a module has the shape of its classes, and runs nothing that the file says."""

import ast
import inspect
import textwrap
from abc import ABC
from types import ModuleType
from typing import Any

import pytest

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.user_code.adopt.outline import NAMES, Unread, outline

ACTS = (
    "acts()",
    "x = acts()",
    "x: int = acts()",
    "x = y = acts()",
    "x, y = acts(), 1",
    "x = [acts()]",
    "x = f'{acts()}'",
    "x = lambda: 1\nx()",
    "for x in acts(): pass",
    "with acts() as x: pass",
    "while acts(): pass",
    "del acts",
    "x = 1\nx += acts()",
    "assert acts()",
    "if acts(): x = 1",
    "try: acts()\nexcept acts(): pass\nfinally: acts()",
    "match acts():\n case 1: pass",
    "(x := acts())",
    "@acts\ndef x(): pass",
    "@acts()\nclass x: pass",
    "def x(y=acts()): pass",
    "def x(*, y=acts()): pass",
    "def x(y: acts()) -> acts(): pass",
    "class x(acts()): pass",
    "class x(metaclass=acts()): pass",
    "class x(y=acts()): pass",
    "class x:\n z = acts()\n acts()",
    "class x:\n class y(acts()): pass",
    "class x:\n def __init_subclass__(cls): acts()\nclass y(x): pass",
    "class x:\n def __set_name__(*_): acts()\nclass y:\n z = x()",
    "class x(type):\n def __new__(*_): acts()\nclass y(metaclass=x): pass",
    "import antigravity\nantigravity.x",
    "from os import system as x\nclass y(x): pass",
)
"""Files that would call `acts`."""
SHAPE = """
from abc import ABC, abstractmethod
from dataclasses import dataclass
from torch import nn
import torch

LIMIT = 3
if True:
    from typing import Generic, TypeVar
T = TypeVar("T")

@dataclass
class Values:
    a: int
    b: float = 0.5

class Base(ABC, nn.Module, Generic[T]):
    can_repeat = True
    limit = LIMIT
    device = torch.device("cuda")

    def __init__(self, size: int = 2, *, kind="a", device=torch.device("cpu"), **rest):
        raise RuntimeError

    @abstractmethod
    def run(self): ...

    @classmethod
    def default_args(cls):
        args = {"clip": 0.2, "device": torch.device("cpu")}
        return args

    @property
    def steps(self):
        return 4

    @classmethod
    def in_trainer(cls) -> bool:
        "Says where."
        return True

class Own(Base):
    async def run(self):
        await self.auxiliary_models
"""


def made(text: str) -> ModuleType:
    module = ModuleType(__name__)
    vars(module).update(NAMES)
    tree = ast.parse(textwrap.dedent(text))
    exec(outline(tree, "fork.py", lambda _: False, ()), vars(module))
    return module


@as_subtests("text", ACTS)
def test_nothing_of_a_file_runs(text: str) -> None:
    calls: list[object] = []
    module = ModuleType("outlined")
    vars(module).update(NAMES, acts=lambda *given, **_: calls.append(given))
    exec(outline(ast.parse(text), "fork.py", lambda _: False, ("acts",)), vars(module))
    assert calls == []


def test_classes_have_their_bases_signatures_flags_and_words() -> None:
    module: Any = made(SHAPE)
    own = module.Own
    assert own.__mro__ == (own, module.Base, ABC, object)
    assert own.can_repeat is True and own.limit == 3 and own.device is Unread
    signature = inspect.signature(own)
    assert list(signature.parameters) == ["size", "kind", "device", "rest"]
    assert signature.parameters["size"].default == 2
    assert signature.parameters["device"].default is None
    assert own.default_args() == {"clip": 0.2} and own.in_trainer() is True
    assert own(1).steps == 4, "a constructor sets nothing"
    assert inspect.iscoroutinefunction(own.run) and "auxiliary_models" in own.run.__code__.co_names
    assert module.Base.__abstractmethods__ == {"run"}
    assert module.Values(1).b == 0.5
    with pytest.raises(UserError, match="a check runs nothing of a fork"):
        own(1).run().send(None)


def test_a_missing_package_is_missed_as_by_python() -> None:
    def finds(module: str) -> bool:
        raise ModuleNotFoundError(name=module)

    for text in ("import absent", "from absent import x", "if True: import absent"):
        with pytest.raises(ModuleNotFoundError, match="No module named 'absent'"):
            exec(outline(ast.parse(text), "fork.py", finds, ()), dict(NAMES))
    for text in (
        "try: import absent\nexcept ImportError: x = 1",
        "if TYPE_CHECKING: import absent",
    ):
        exec(outline(ast.parse(text), "fork.py", finds, ()), dict(NAMES))
