"""Values of a script's variables, with the line of each part."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from trinity.verl.shell.tokens import Token

UNKNOWN = "UNKNOWN"
"""Placeholder of a value that is known only by running the script."""
_INDEX = re.compile(r"-?[0-9]+")
ARGUMENTS = "@"
"""Name under which the arguments of the function that is read are held."""


_OF_LIBRARIES = re.compile(
    r"(NCCL|CUDA|VLLM|RAY|HYDRA|PYTORCH|TORCH|GLOO|OMP|MKL|SGL|SGLANG|HCCL|ASCEND|TRITON|XLA|NVTE"
    r"|LD|WANDB|VERL|TRANSFORMERS|ROCR|HIP|HSA|IB|UCX|NPU|TASK_QUEUE|TF|GRPC|SLURM)_.*"
    r"|(TORCH|PYTHON|CPU_AFFINITY|MASTER_|RANK|WORLD_SIZE).*"
    r"|PATH|HOME|TMP|TEMP|TMPDIR|TOKENIZERS_PARALLELISM|no_proxy|https?_proxy|HTTPS?_PROXY|NO_PROXY"
)
"""Environment variables that are read by libraries, not by user code, judging by their names."""


def is_of_a_library(name: str) -> bool:
    """Returns True for an environment variable of a back end's, the shell's or a tool's."""
    return _OF_LIBRARIES.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ExpandedField:
    """A text and the line on which it was written."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ScriptNote:
    """A remark on a decision made while reading a script."""

    line: int
    text: str


@dataclass(slots=True)
class Variables:
    """Variables of one script; scalars are arrays of one element."""

    given: Mapping[str, str]
    """Values that the caller sets, like `NAME=value bash script.sh`; they only replace defaults."""
    notes: list[ScriptNote] = field(default_factory=list)
    defaulted: set[str] = field(default_factory=set)
    """Names whose default was taken because they were not set."""
    exported: set[str] = field(default_factory=set)
    """Names that the script exports."""
    optional: set[str] = field(default_factory=set)
    """Unset names that the script itself treats so, as in `${NAME:+-}`: they are empty."""
    _held: dict[str, tuple[ExpandedField, ...]] = field(default_factory=dict)
    _keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of the elements of arrays that have some."""

    def __post_init__(self) -> None:
        self._held = {name: (ExpandedField(text, 0),) for name, text in self.given.items()}

    def get(self, name: str) -> tuple[ExpandedField, ...] | None:
        """The fields of a variable; None if it is not set."""
        return self._held.get(name)

    def put(self, name: str, fields: tuple[ExpandedField, ...], *, appended: bool = False) -> None:
        """Sets a variable; `+=` appends elements."""
        if not appended:
            self._keys.pop(name, None)
        self._held[name] = (self._held.get(name, ()) if appended else ()) + fields

    def keys(self, name: str) -> tuple[str, ...]:
        """The keys of an array's elements, or their numbers."""
        numbers = tuple(str(number) for number in range(len(self._held.get(name, ()))))
        return self._keys.get(name, numbers)

    def has_keys(self, name: str) -> bool:
        """True for an array whose elements have keys."""
        return name in self._keys

    def element(self, name: str, key: str) -> ExpandedField | None:
        """The element of an array at a key or a number, the last one at -1; None without one."""
        held = self._held.get(name, ())
        if name in self._keys:
            return dict(zip(self._keys[name], held, strict=True)).get(key)
        position = int(key) if _INDEX.fullmatch(key) else 0
        return held[position] if -len(held) <= position < len(held) else None

    def put_element(self, name: str, key: str, value: ExpandedField) -> None:
        """Sets one element of an array."""
        elements = dict(zip(self.keys(name), self._held.get(name, ()), strict=True))
        elements[key] = value
        self._held[name], self._keys[name] = tuple(elements.values()), tuple(elements)

    def put_arguments(self, fields: tuple[ExpandedField, ...]) -> None:
        """Sets `$1`, `$2` and so on, `$@` and `$#`."""
        for number in range(1, len(self._held.get(ARGUMENTS, ())) + 1):
            self._held.pop(str(number), None)
        self._held[ARGUMENTS] = self._held["*"] = fields
        self._held["#"] = (ExpandedField(str(len(fields)), 0),)
        for number, value in enumerate(fields, 1):
            self._held[str(number)] = (value,)

    def remove(self, name: str) -> None:
        """Removes a variable, as `unset` does."""
        self._held.pop(name, None)
        self._keys.pop(name, None)

    @contextmanager
    def of_child(self) -> Iterator[None]:
        """Restores the variables after a script that runs as a child process."""
        held, keys = dict(self._held), dict(self._keys)
        try:
            yield
        finally:
            self._held, self._keys = held, keys

    def keep_exported(self, names: Iterable[str]) -> None:
        """Removes all variables that a process does not inherit; it inherits these `names`."""
        inherited = {*self.exported, *self.given, *names}
        self._held = {name: fields for name, fields in self._held.items() if name in inherited}
        self._keys = {}

    def note_guess(self, words: Sequence[Token]) -> None:
        """Notes a command that decides a condition but is not run."""
        shown = " ".join(word.text for word in words)
        self.note(words[0].line, f"`{shown}` is not run and counts as failed")

    def note(self, line: int, text: str) -> None:
        """Adds a note for the user, unless it is there already."""
        if (note := ScriptNote(line, text)) not in self.notes:
            self.notes.append(note)
