"""Decides which parts of a fork are taken, and describes the rest.

adoption = adopt(Fork.read(root), names_in(text))
adoption.adopted.text(), adoption.sentences
"""

import ast
import importlib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from trinity.plugins import value_at
from trinity.user_code.adopt.checkout import Fork, SourceFile
from trinity.user_code.adopt.gathering import Gathering, has_counterpart, is_here, service_of
from trinity.user_code.adopt.loading import REGISTRIES
from trinity.user_code.adopt.manifest import Adopted, AdoptedPart
from trinity.user_code.adopt.parts import READERS, FoundPart, FoundParts
from trinity.user_code.adopt.upstream import Origin

SHOWN_CHANGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The parts that are taken, and sentences about the differences from the fork."""

    adopted: Adopted
    taken: tuple[FoundPart, ...]
    readers: tuple[FoundPart, ...]
    sentences: tuple[str, ...]


def adopt(checkout: Fork, names: Set[str] | None) -> Adoption:
    """Takes the fork's own parts: those with these names, or all of them.

    The name of an algorithm also takes the parts that its class names.
    """
    found = FoundParts.of(checkout)
    gathering = Gathering(checkout)
    chosen = {(part.registry, part.name): part for part in _chosen(found, names)}
    parts = [part for part in chosen.values() if part.registry != READERS]
    taken = tuple(_adopted(part, gathering) for part in parts)
    if names is not None:
        _take_paths(checkout, gathering, names)
    adopted = Adopted(checkout=str(checkout.root), parts=taken, files=gathering.files())
    return Adoption(
        adopted=adopted,
        taken=tuple(parts),
        readers=tuple(part for part in chosen.values() if part.registry == READERS),
        sentences=(
            *_about_checkout(checkout),
            *(_double(first, other) for first, other in found.doubles if first in parts),
            *gathering.remarks,
            *(
                f"{place}: `{package}` is not installed: install it where `trinity` and its "
                "services run"
                for package, place in sorted(gathering.packages.items())
            ),
            *_changes(checkout, found),
        ),
    )


def _adopted(part: FoundPart, gathering: Gathering) -> AdoptedPart:
    return AdoptedPart(
        registry=part.registry,
        name=part.name,
        module=gathering.take(part.source, part.definition.name),
        attribute=part.definition.name,
        file=part.source.path,
        line=part.definition.line,
    )


def _chosen(found: FoundParts, names: Set[str] | None) -> Iterator[FoundPart]:
    """Yields own parts, and of those in the file the ones of Trinity-RFT that are not here."""
    if names is None:
        yield from (part for part in found.parts.values() if part.definition.origin is Origin.OWN)
        return
    wanted, known = list(names), set(names)
    while wanted:
        for part in found.named([wanted.pop()]):
            if not is_taken(part):
                continue
            yield part
            further = _texts(part.definition.node) if part.registry == "ALGORITHM_TYPE" else set()
            wanted += sorted(further - known)
            known |= further
    yield from (
        part
        for part in found.parts.values()
        if part.registry == READERS and part.definition.origin is Origin.OWN
    )


def is_taken(part: FoundPart) -> bool:
    """True for a part that does not come with this package, and that may run here."""
    if part.registry == READERS:
        return False
    if part.definition.origin is Origin.OWN:
        return True
    registries = [value_at(path) for path in REGISTRIES[part.registry]]
    registry = registries[-1]
    if any(part.name in known.builtins for known in registries[-2:]):
        return False
    absent = registry.absent.get(part.name)
    return absent is None or bool(absent.path)


def _texts(node: ast.stmt) -> set[str]:
    constants = (child.value for child in ast.walk(node) if isinstance(child, ast.Constant))
    return {text for text in constants if isinstance(text, str)}


def _take_paths(checkout: Fork, gathering: Gathering, names: Set[str]) -> None:
    """Takes definitions that the file names by a dotted path."""
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        source = checkout.of_module(module) if module else None
        if source is not None and attribute in source.definitions:
            is_own = source.definitions[attribute].origin is Origin.OWN
            if is_own or not is_here(module, attribute):
                gathering.take(source, attribute)


def _about_checkout(checkout: Fork) -> Iterator[str]:
    for path, reason in checkout.unreadable.items():
        yield f"{path} is left out, as it cannot be read: {reason}"
    if not checkout.count(Origin.UPSTREAM):
        yield (
            "no file is as in a release of Trinity-RFT up to 0.6.0, so its base is unknown: "
            "definitions are compared by name, and more of them may be the fork's own"
        )


def _double(first: FoundPart, other: FoundPart) -> str:
    return (
        f"two parts are the {first.kind} `{first.name}`: {first.place}, which is taken, and "
        f"{other.place}"
    )


def _changes(checkout: Fork, found: FoundParts) -> Iterator[str]:
    """Yields a sentence for each changed file: its definitions, and their replacements."""
    names = {part.definition: part.name for part in found.parts.values() if not is_taken(part)}
    for source in checkout.files.values():
        changed = [own for own in source.definitions.values() if own.origin is Origin.CHANGED]
        if not changed or not source.path.startswith("trinity/") or source.is_package:
            continue
        shown = [
            f"`{own.name}` (line {own.line}" + (f", named `{names[own]}`)" if own in names else ")")
            for own in changed[:SHOWN_CHANGES]
        ]
        rest = len(changed) - len(shown)
        shown += [f"{rest} more"] if rest else []
        place = _in_its_place(source, changed[0].name)
        yield f"{source.path} changes {', '.join(shown)}: {place}"


def _in_its_place(source: SourceFile, name: str) -> str:
    if service := service_of(source.path):
        return f"not taken, {service}"
    if is_here(source.module, name):
        found = getattr(importlib.import_module(source.module), name)
        where = f"{getattr(found, '__module__', source.module)}.{name}"
        return f"{where} takes its place"
    return "not taken" if has_counterpart(source) else "taken with the parts that use it"


def read_checkout(path: Path) -> Fork:
    """Reads the checkout at a path; links in the path are followed."""
    return Fork.read(path.resolve())
