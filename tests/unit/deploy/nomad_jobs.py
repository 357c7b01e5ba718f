"""The shipped jobs of Nomad as blocks, as far as their HCL goes: a block or an attribute a line."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.unit.deploy.manifests import SHIPPED

OPENING = re.compile(r'(\w+)((?: "[^"]*")*) \{(\})?')
ATTRIBUTE = re.compile(r"(\w+)\s*= (.*)", re.DOTALL)
LOCAL = re.compile(r"\blocal\.(\w+)")


@dataclass(slots=True)
class Block:
    """A block with the texts of its attributes and the blocks in it."""

    kind: str
    labels: list[str]
    attributes: dict[str, str] = field(default_factory=dict)
    blocks: list["Block"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its label."""
        (label,) = self.labels
        return label

    def of_kind(self, kind: str) -> list["Block"]:
        """The blocks of a kind right in it."""
        return [one for one in self.blocks if one.kind == kind]

    def within(self, kind: str) -> Iterator["Block"]:
        """Those of a kind at any depth."""
        for one in self.blocks:
            if one.kind == kind:
                yield one
            yield from one.within(kind)

    def list_of(self, attribute: str) -> list[str]:
        """An attribute that is a list of strings."""
        values: list[str] = json.loads(self.attributes[attribute])
        return values


def job_file(name: str) -> Block:
    """One of the shipped files."""
    lines = (SHIPPED / "nomad" / f"{name}.nomad.hcl").read_text().splitlines()
    told = (line.strip() for line in lines)
    return _read(Block("file", []), iter([one for one in told if one and one[0] != "#"]))


def config_of(task: Block) -> Block:
    """What the driver is told."""
    (config,) = task.of_kind("config")
    return config


def variables_of(task: Block, file: Block) -> str:
    """The text of a task's environment, with the locals that it names."""
    own = [json.dumps(one.attributes) for one in task.of_kind("env")]
    text = "".join([task.attributes.get("env", ""), *own])
    (shared,) = file.of_kind("locals")
    return text + "".join(shared.attributes[name] for name in LOCAL.findall(text))


def _read(block: Block, lines: Iterator[str]) -> Block:
    """Fill a block with the lines up to its end."""
    for line in lines:
        if line == "}":
            return block
        if opening := OPENING.fullmatch(line):
            kind, labels, is_empty = opening.groups()
            inner = Block(kind, re.findall(r'"([^"]*)"', labels))
            block.blocks.append(inner if is_empty else _read(inner, lines))
        else:
            name, text = _attribute(line, lines)
            block.attributes[name] = text
    return block


def _attribute(line: str, lines: Iterator[str]) -> tuple[str, str]:
    """A map or a list may go on over some lines."""
    while line.count("{") + line.count("[") > line.count("}") + line.count("]"):
        line += "\n" + next(lines)
    found = ATTRIBUTE.fullmatch(line)
    assert found, line
    return found[1], found[2]
