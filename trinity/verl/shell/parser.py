"""Syntax tree of a shell script, as far as it is needed here."""

from dataclasses import dataclass
from typing import Literal, NoReturn, cast

from trinity.errors import UserError
from trinity.verl.shell.tokens import REDIRECTIONS, Lexer, Token

_SEPARATORS = (";", "&", "\n", ";;")
_CLOSING = {"then", "else", "elif", "fi", "do", "done", "esac", "}"}


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """Assignments, or a command with its words."""

    words: tuple[Token, ...]

    @property
    def line(self) -> int:
        """Line of its first word."""
        return self.words[0].line


@dataclass(frozen=True, slots=True)
class AndOrList:
    """Commands joined by `&&` and `||`."""

    first: "Node"
    rest: tuple[tuple[Literal["&&", "||"], "Node"], ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """`! command`."""

    node: "Node"


@dataclass(frozen=True, slots=True)
class CommandList:
    """Commands one after another."""

    nodes: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class IfCommand:
    """Conditions with the block of each, and the block of `else`."""

    branches: tuple[tuple[CommandList, CommandList], ...]
    otherwise: CommandList


@dataclass(frozen=True, slots=True)
class CaseCommand:
    """A word, and patterns with the block that runs if one of them matches."""

    subject: Token
    branches: tuple[tuple[tuple[Token, ...], CommandList], ...]


@dataclass(frozen=True, slots=True)
class LoopCommand:
    """`for` with its variable and words; `while` and `until` have a condition instead."""

    line: int
    variable: str | None
    words: tuple[Token, ...]
    body: CommandList
    condition: CommandList | None = None
    ends_when: bool = False
    """The value of the condition that ends the loop."""


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """A function definition."""

    line: int
    name: str
    body: "Node"


Node = (
    SimpleCommand
    | AndOrList
    | Negation
    | CommandList
    | IfCommand
    | CaseCommand
    | LoopCommand
    | FunctionDefinition
)


def parse(text: str, name: str, first_line: int = 1, *, on_one_line: bool = False) -> CommandList:
    """Returns the commands of `text`, which messages call `name`.

    With `on_one_line` all of them count as written on the first line.
    Raises: UserError naming the line that cannot be parsed.
    """
    parser = _Parser(Lexer(text, name, first_line, on_one_line=on_one_line).tokens(), name)
    block = parser.block(set())
    if (token := parser.peek()) is not None:
        parser.refuse(token)
    return block


class _Parser:
    """Recursive-descent parser that reads the tokens once."""

    def __init__(self, tokens: list[Token], name: str) -> None:
        self._tokens = tokens
        self._name = name
        self._position = 0

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or one further ahead."""
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else None

    def refuse(self, token: Token | None) -> NoReturn:
        """Raises UserError for an unexpected `token`; None is the end of the text."""
        if token is None:
            raise UserError(f"{self._name} ends within a command: give the whole script")
        raise UserError(f"{self._name}:{token.line}: `{token.text}` is not expected here")

    def block(self, ends: set[str]) -> CommandList:
        """Reads commands up to one of the words or operators in `ends`, which is not consumed."""
        nodes: list[Node] = []
        while (token := self.peek()) is not None and token.text not in ends:
            if token.kind == "operator" and token.text in _SEPARATORS:
                self._position += 1
            elif token.text in _CLOSING or token.text == ")":
                self.refuse(token)
            else:
                nodes.append(self._chain())
        return CommandList(tuple(nodes))

    def _chain(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[Literal["&&", "||"], Node]] = []
        while (token := self.peek()) is not None and token.text in ("&&", "||"):
            self._position += 1
            self._skip_newlines()
            rest.append((cast('Literal["&&", "||"]', token.text), self._pipeline()))
        return AndOrList(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Node:
        if (token := self.peek()) is not None and token.text == "!":
            self._position += 1
            return Negation(self._pipeline())
        nodes = [self._command()]
        while (token := self.peek()) is not None and token.text in ("|", "|&"):
            self._position += 1
            self._skip_newlines()
            nodes.append(self._command())
        return nodes[0] if len(nodes) == 1 else CommandList(tuple(nodes))

    def _command(self) -> Node:
        token = self.peek()
        if token is None:
            self.refuse(token)
        match token.text:
            case "if":
                node: Node = self._if()
            case "case":
                node = self._case()
            case "for" | "while" | "until":
                node = self._loop()
            case "{":
                node = self._enclosed("{", "}")
            case "(":
                node = self._enclosed("(", ")")
            case "function":
                node = self._function(self._next())
            case _:
                node = self._simple()
        self._skip_redirections()
        return node

    def _simple(self) -> Node:
        after, later = self.peek(1), self.peek(2)
        if after is not None and later is not None and after.text + later.text == "()":
            return self._function(None)
        words: list[Token] = []
        is_test = False
        while (token := self.peek()) is not None:
            if token.kind == "operator" and not is_test:
                if not self._skip_redirections():
                    break
                continue
            is_test = (is_test or token.text == "[[") and token.text != "]]"
            words.append(token)
            self._position += 1
        if not words:
            self.refuse(token)
        return SimpleCommand(tuple(words))

    def _if(self) -> IfCommand:
        branches: list[tuple[CommandList, CommandList]] = []
        while (word := self._next()).text in ("if", "elif"):
            condition = self.block({"then"})
            self._expect("then")
            branches.append((condition, self.block({"elif", "else", "fi"})))
        otherwise = self.block({"fi"}) if word.text == "else" else CommandList(())
        if word.text == "else":
            self._expect("fi")
        return IfCommand(tuple(branches), otherwise)

    def _case(self) -> CaseCommand:
        self._expect("case")
        subject = self._next()
        self._skip_newlines()
        self._expect("in")
        branches: list[tuple[tuple[Token, ...], CommandList]] = []
        self._skip_newlines()
        while (token := self.peek()) is not None and token.text != "esac":
            patterns: list[Token] = []
            while (word := self._next()).text != ")":
                if word.kind == "word":
                    patterns.append(word)
            branches.append((tuple(patterns), self.block({";;", "esac"})))
            while (token := self.peek()) is not None and token.text in (";;", "\n"):
                self._position += 1
        self._expect("esac")
        return CaseCommand(subject, tuple(branches))

    def _loop(self) -> LoopCommand:
        keyword = self._next()
        variable: str | None = None
        words: list[Token] = []
        condition: CommandList | None = None
        if keyword.text == "for":
            variable = self._next().text
            header = self._until("do")
            words = [token for token in header if token.kind == "word" and token.text != "in"]
        else:
            condition = self.block({"do"})
        self._expect("do")
        body = self.block({"done"})
        self._expect("done")
        ends_when = keyword.text == "until"
        return LoopCommand(keyword.line, variable, tuple(words), body, condition, ends_when)

    def _function(self, keyword: Token | None) -> FunctionDefinition:
        name = self._next()
        while (token := self.peek()) is not None and token.text in ("(", ")", "\n"):
            self._position += 1
        return FunctionDefinition((keyword or name).line, name.text, self._command())

    def _enclosed(self, opener: str, closer: str) -> CommandList:
        self._expect(opener)
        block = self.block({closer})
        self._expect(closer)
        return block

    def _until(self, word: str) -> list[Token]:
        taken: list[Token] = []
        while (token := self.peek()) is not None and token.text != word:
            taken.append(self._next())
        return taken

    def _skip_newlines(self) -> None:
        while (token := self.peek()) is not None and token.text == "\n":
            self._position += 1

    def _skip_redirections(self) -> bool:
        """Skips redirections, each with the word after it; returns True if there were any."""
        start = self._position
        while (token := self.peek()) is not None and self._is_redirection(token):
            self._position += 2
        return self._position > start

    def _is_redirection(self, token: Token) -> bool:
        return token.kind == "operator" and token.text in REDIRECTIONS

    def _next(self) -> Token:
        token = self.peek()
        if token is None:
            self.refuse(None)
        self._position += 1
        return token

    def _expect(self, text: str) -> None:
        token = self._next()
        if token.text != text:
            self.refuse(token)
