"""Chat templates: their syntax, the variables that they read, and the messages in rendered text.

A chat template renders a chat in a loop over its messages. A copy of the template puts marks around
the output of each iteration; without the marks, its text must equal the prompt. If it does not, as
with a template that trims the output of its loop, roles are unknown.

    roles = ChatRoles(template)
    roles.parts(text, messages, {"tools": None, "add_generation_prompt": True})

Import it where a template is at hand: Jinja takes a tenth of the time of `trinity config check`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import Environment, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trinity.data.conversations import CALLS, functions_of, with_arguments
from trinity.errors import UserError

BEGIN, END = "trinity_begin_of_message", "trinity_end_of_messages"
MARK = re.compile("\ue000(\\d*)\ue001")
"""Two private-use characters of Unicode, with or without the place of a message between them."""
SYSTEM_ROLES = ("system", "developer")
_TURN_OF_TEXT = re.compile(r"\bcontent['\"]?\]? is not none")
Message = dict[str, Any]
NOT_RENDERED = (TemplateError, TypeError, ValueError, LookupError)
"""Exceptions that templates raise for messages they do not expect, such as roles out of turn."""


class _Generation(Extension):
    """The tag that transformers puts around the assistant's text; parses its content only."""

    tags = {"generation"}  # noqa: RUF012 (so declared by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


TEMPLATE_EXTENSIONS: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]


def check_template(template: str, whose: str) -> None:
    """Checks the syntax, and that every filter and test the template names exists.

    Raises: UserError with the line of the first error.
    """
    environment = Environment(extensions=TEMPLATE_EXTENSIONS)
    try:
        environment.compile(template)
    except TemplateSyntaxError as error:
        raise UserError(
            f"the chat template {whose} is not valid Jinja (line {error.lineno}: "
            f"{error.message}): correct it"
        ) from error


def template_variables(template: str) -> frozenset[str]:
    """Returns the variables that a template reads, those of every template among them."""
    environment = Environment(extensions=TEMPLATE_EXTENSIONS)
    return frozenset(find_undeclared_variables(environment.parse(template)))


class ChatPart(NamedTuple):
    """Characters [start, end) of a prompt that a message of this role became."""

    role: str
    start: int
    end: int


class ChatRoles:
    """The roles in the prompts of one chat template."""

    def __init__(self, template: str) -> None:
        environment = template_environment()
        tree = environment.parse(template)
        for number, loop in enumerate(list(tree.find_all(nodes.For))):
            _mark(tree, loop, number)
        code = environment.compile(tree)
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def parts(
        self, text: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object]
    ) -> list[ChatPart]:
        """Returns the parts of a prompt; empty if the marked template renders another prompt."""
        loops = _Loops()
        marks = {BEGIN: loops.begin, END: loops.end}
        try:
            marked = self._template.render(
                {"documents": None, **variables, "messages": messages, **marks}
            )
        except NOT_RENDERED:
            return []
        if not MARK.sub("", marked).startswith(text):
            return []
        parts = [part for part in _split(marked, loops.roles) if part.start < len(text)]
        return _with_system(text, parts, messages)


class _Loops:
    """Notes the roles of the messages that loops come to, and tells their marks."""

    def __init__(self) -> None:
        self.roles: list[str] = []
        self._marked: set[int] = set()

    def begin(self, loop: int, item: object) -> str:
        """Returns the mark before a message; empty if the loop is not over messages."""
        role = item.get("role") if isinstance(item, Mapping) else None
        if not isinstance(role, str):
            return ""
        self._marked.add(loop)
        self.roles.append(role)
        return f"\ue000{len(self.roles) - 1}\ue001"

    def end(self, loop: int) -> str:
        """Returns the mark after a loop over messages."""
        return "\ue000\ue001" if loop in self._marked else ""


def _mark(tree: nodes.Template, loop: nodes.For, number: int) -> None:
    """Lets a loop write a mark before each of its items, and one after the last."""
    if not isinstance(loop.target, nodes.Name) or not _writes(loop):
        return
    item = nodes.Name(loop.target.name, "load")
    loop.body.insert(0, _output(BEGIN, [nodes.Const(number), item], tree.environment))
    for body in _bodies(tree):
        if loop in body:
            body.insert(body.index(loop) + 1, _output(END, [nodes.Const(number)], tree.environment))


def _writes(loop: nodes.For) -> bool:
    """Returns False for a loop that only reads messages, as some do inside the rendering loop.

    Its marks would split the text of one message.
    """
    return any(
        not isinstance(part, nodes.TemplateData) or part.data.strip()
        for output in loop.find_all(nodes.Output)
        for part in output.nodes
    )


def _output(name: str, arguments: list[nodes.Expr], environment: Any) -> nodes.Output:
    call = nodes.Call(nodes.Name(name, "load"), arguments, [], None, None)
    output = nodes.Output([call], lineno=1)
    output.set_environment(environment)
    return output


def _bodies(tree: nodes.Node) -> Iterator[list[nodes.Node]]:
    """Yields all lists of statements of a template."""
    for node in (tree, *tree.find_all(nodes.Node)):
        for name in ("body", "else_"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body


def _split(marked: str, roles: Sequence[str]) -> Iterator[ChatPart]:
    """Yields the parts between marks that have any text."""
    place, start, role = 0, 0, ""
    for mark in (*MARK.finditer(marked), None):
        end = len(marked) if mark is None else mark.start()
        length = end - start
        if role and length:
            yield ChatPart(role, place, place + length)
        place += length
        if mark is not None:
            start, role = mark.end(), roles[int(mark[1])] if mark[1] else ""


def _with_system(
    text: str, parts: list[ChatPart], messages: Sequence[Mapping[str, Any]]
) -> list[ChatPart]:
    """Adds a first message of the system that the template wrote before its loop."""
    first: Mapping[str, object] = messages[0] if messages else {}
    begin = parts[0].start if parts else 0
    role, content = first.get("role"), first.get("content")  # of any type, or missing
    if role not in SYSTEM_ROLES or begin == 0:
        return parts
    is_there = isinstance(content, str) and content.strip() and content.strip() in text[:begin]
    return [ChatPart(str(role), 0, begin), *parts] if is_there else parts


def template_environment() -> ImmutableSandboxedEnvironment:
    """Returns an environment like that of transformers, whose text the marked one must equal."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=TEMPLATE_EXTENSIONS
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def render_with_calls(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message], template: str
) -> tuple[str, Sequence[Message]]:
    """Renders messages, and returns them as the template took them.

    Arguments of tool calls are objects. A template that concatenates them with text, as DeepSeek's
    does, gets them as JSON. A message with calls and without text has an empty text, or null if the
    template would begin another turn for an empty text.

    Raises: one of NOT_RENDERED, the first one.
    """
    empty = None if _TURN_OF_TEXT.search(template) else ""
    plain = [
        {**message, "content": empty}
        if message.get(CALLS) and not message.get("content")
        else message
        for message in messages
    ]
    try:
        return render(plain), plain
    except NOT_RENDERED as error:
        as_text = [_with_json_arguments(message) for message in plain]
        if as_text == plain:
            raise
        try:
            return render(as_text), as_text
        except NOT_RENDERED:
            raise error from None


def _with_json_arguments(message: Message) -> Message:
    calls = [
        with_arguments(call, function, _to_json(arguments))
        if isinstance(arguments := function.get("arguments"), dict)
        else call
        for call, function in functions_of(message)
    ]
    return {**message, CALLS: calls} if calls else message


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes a value as transformers does, without HTML's escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
