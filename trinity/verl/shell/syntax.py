"""Syntax tree of a shell script, as far as it is needed here."""

from dataclasses import dataclass
from typing import Literal

from trinity.verl.shell.tokens import Token


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments, or a command with its words."""

    words: tuple[Token, ...]

    @property
    def line(self) -> int:
        """Line of its first word."""
        return self.words[0].line


@dataclass(frozen=True, slots=True)
class Chain:
    """Commands joined by `&&` and `||`."""

    first: "Node"
    rest: tuple[tuple[Literal["&&", "||"], "Node"], ...]


@dataclass(frozen=True, slots=True)
class Not:
    """`! command`."""

    node: "Node"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands one after another."""

    nodes: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with the block of each, and the block of `else`."""

    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Case:
    """A word, and patterns with the block that runs if one of them matches."""

    subject: Token
    branches: tuple[tuple[tuple[Token, ...], Block], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`for` with its variable and words; `while` and `until` have neither."""

    line: int
    variable: str | None
    words: tuple[Token, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition, of which only the name is kept."""

    line: int
    name: str


Node = Simple | Chain | Not | Block | If | Case | Loop | Function
