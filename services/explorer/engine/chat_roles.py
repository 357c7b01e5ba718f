"""Finds which message of a chat each part of its prompt came from.

A chat template writes a chat in a loop over its messages. A copy of the template puts marks around
what each pass of such a loop writes; without the marks its text must be the prompt itself. Where it
is not, as with a template that trims what its loop has written, roles are not known.

    roles = ChatRoles(template)
    roles.parts(text, messages, {"tools": None, "add_generation_prompt": True})
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trinity.config.checks.chat_template import TEMPLATE_EXTENSIONS
from trinity.types import RoleSpan
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    from transformers import BatchEncoding

BEGIN, END = "trinity_begin_of_message", "trinity_end_of_messages"
MARK = re.compile("\ue000(\\d*)\ue001")
"""Two characters of Unicode's private use, with the place of a message between them, or nothing."""
SYSTEM_ROLES = ("system", "developer")


class ChatPart(NamedTuple):
    """Characters [start, end) of a prompt that a message of this role became."""

    role: str
    start: int
    end: int


class ChatRoles:
    """The roles in the prompts of one chat template."""

    def __init__(self, template: str) -> None:
        environment = _environment()
        tree = environment.parse(template)
        for number, loop in enumerate(list(tree.find_all(nodes.For))):
            _mark(tree, loop, number)
        code = environment.compile(tree)
        self._template = environment.template_class.from_code(
            environment, code, environment.make_globals(None)
        )

    def parts(
        self, text: str, messages: Sequence[Message], variables: Mapping[str, object]
    ) -> list[ChatPart]:
        """Returns the parts of a prompt; none where the marked template writes another one."""
        loops = _Loops()
        marks = {BEGIN: loops.begin, END: loops.end}
        try:
            marked = self._template.render(
                {"documents": None, **variables, "messages": messages, **marks}
            )
        except (TemplateError, TypeError, ValueError, LookupError):
            return []
        if not MARK.sub("", marked).startswith(text):
            return []
        parts = [part for part in _split(marked, loops.roles) if part.start < len(text)]
        return _with_system(text, parts, messages)


def role_spans(parts: Sequence[ChatPart], encoding: "BatchEncoding") -> tuple[RoleSpan, ...]:
    """Converts parts of a text to spans of its tokens; none where the tokenizer does not tell.

    A token across the border of two messages belongs to the first.
    """
    if not parts or not encoding.is_fast:
        return ()
    ends = [end for _, end in encoding.encodings[0].offsets]
    spans: list[RoleSpan] = []
    for part in parts:
        start = max(bisect_right(ends, part.start), spans[-1].end if spans else 0)
        end = bisect_left(ends, part.end) + 1
        if start < (end := min(end, len(ends))):
            spans.append(RoleSpan(role=part.role, start=start, end=end))
    return tuple(spans)


class _Loops:
    """Notes the roles of the messages that loops come to, and tells their marks."""

    def __init__(self) -> None:
        self.roles: list[str] = []
        self._marked: set[int] = set()

    def begin(self, loop: int, item: object) -> str:
        """Returns the mark before a message; nothing where a loop goes over something else."""
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
    if not isinstance(loop.target, nodes.Name):
        return
    item = nodes.Name(loop.target.name, "load")
    loop.body.insert(0, _output(BEGIN, [nodes.Const(number), item], tree.environment))
    for body in _bodies(tree):
        if loop in body:
            body.insert(body.index(loop) + 1, _output(END, [nodes.Const(number)], tree.environment))


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


def _with_system(text: str, parts: list[ChatPart], messages: Sequence[Message]) -> list[ChatPart]:
    """Adds a first message of the system that the template wrote before its loop."""
    first: Mapping[str, object] = messages[0] if messages else {}
    begin = parts[0].start if parts else 0
    role, content = first.get("role"), first.get("content")  # a workflow may give others, or none
    if role not in SYSTEM_ROLES or begin == 0:
        return parts
    is_there = isinstance(content, str) and content.strip() and content.strip() in text[:begin]
    return [ChatPart(str(role), 0, begin), *parts] if is_there else parts


def _environment() -> ImmutableSandboxedEnvironment:
    """Returns an environment like that of transformers, whose text the marked one must equal."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=TEMPLATE_EXTENSIONS
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


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
