"""Finds the places that write to files, and the loops, in the source.

python -m tests.support.places_and_loops     # prints each function with its kinds of calls
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("trinity", "services")
NOT_OURS = ("trinity/api/",)
"""Generated."""
WRITING = {
    *("write_text", "write_bytes", "unlink", "touch", "mkdir", "rmdir", "truncate", "makedirs"),
    *("symlink_to", "hardlink_to", "rmtree", "copytree", "copyfile", "copy2", "removedirs"),
    *("to_parquet", "save_to_disk", "ParquetWriter", "create_all", "FileHandler", "savefig"),
    *(
        "move_to_new",
        "claim_folder",
        "mark_if_new",
        "working_folder",
        "write_new_file",
        "write_private",
    ),
    *("save_pretrained", "save_file", "ftruncate", "write_secret", "pwrite"),
}
"""Methods and functions that make, change or remove files, whatever they belong to."""
OF_OS = {"rename", "replace", "remove", "link", "symlink", "open", "mkfifo", "chown", "chmod"}
"""Those that count as functions of `os` or `shutil` alone; other things have such names too."""
Look = Callable[[ast.AST], Iterator[str]]
STARTING = {
    *("create_task", "ensure_future", "run_coroutine_threadsafe", "Thread", "keep_running"),
    *("start_new_thread", "Timer"),
}
"""Calls that start what runs beside the caller."""


def called_name(call: ast.Call) -> str:
    """Returns the last part of what is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def writes(call: ast.Call) -> bool:
    """Returns true for a call that writes to a file or changes a folder."""
    name, values = called_name(call), [*call.args, *(key.value for key in call.keywords)]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_of_os = isinstance(owner, ast.Name) and owner.id in ("os", "shutil")
    if is_of_os and name != "fdopen":
        return name in OF_OS | WRITING | {"move", "copy"} and not _only_reads(name, call)
    if name in ("open", "fdopen"):
        modes = [value.value for value in values if isinstance(value, ast.Constant)]
        is_known = all(isinstance(value, ast.Constant) for value in call.args[-1:]) or not call.args
        told = [mode for mode in modes if isinstance(mode, str) and set(mode) <= set("rwaxbt+U")]
        return any(set(mode) & set("wax+") for mode in told) or (not is_known and _is_choice(call))
    if name == "touch":
        return not ast.unparse(call.func).endswith("connection.touch")  # of Studio's, no file
    if name in ("rename", "replace"):  # of a path: one argument; a text's has two, a value's names
        return owner is not None and len(call.args) == 1 and not call.keywords
    return name in WRITING


def _only_reads(name: str, call: ast.Call) -> bool:
    text, wanted = ast.unparse(call), ("O_CREAT", "O_WRONLY", "O_RDWR", "flags")
    return name == "open" and ("devnull" in text or not any(flag in text for flag in wanted))


def _is_choice(call: ast.Call) -> bool:
    """Returns true if a mode is computed: `open("w" if may_replace else "x")`."""
    return any(isinstance(value, ast.IfExp) for value in call.args)


def loops(node: ast.AST) -> Iterator[str]:
    """Yields the kinds of what a node starts or keeps doing."""
    if isinstance(node, ast.Call) and called_name(node) in STARTING:
        yield called_name(node)
    is_endless = isinstance(node, ast.While) and ast.unparse(node.test) == "True"
    if is_endless and any(isinstance(below, ast.Await) for below in ast.walk(node)):
        yield "endless"


def places(node: ast.AST) -> Iterator[str]:
    """Yields the names of calls that write."""
    if isinstance(node, ast.Call) and writes(node):
        yield called_name(node)


def found_in(text: str, look: Look) -> dict[str, list[str]]:
    """Returns what `look` yields in each function of a module, by its qualified name."""
    found: dict[str, list[str]] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            own = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own = f"{name}.{child.name}".lstrip(".")
            for kind in look(child):
                found.setdefault(own or "module", []).append(kind)
            visit(child, own)

    visit(ast.parse(text), "")
    return found


def found_in_source(look: Look) -> dict[str, set[str]]:
    """Returns the functions in which something was found, by file."""
    every: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if not name.startswith(NOT_OURS) and (
                found := found_in(file.read_text(encoding="utf-8"), look)
            ):
                every[name] = set(found)
    return every


if __name__ == "__main__":
    for title, look in (("places", places), ("loops", loops)):
        sys.stdout.write(f"# {title}\n")
        for file, names in found_in_source(look).items():
            sys.stdout.write(f"{file}: {' '.join(sorted(names))}\n")
