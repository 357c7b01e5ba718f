"""What can be wrong with the files of published weights, a fault of each kind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.model_free.model import WEIGHTS_FILE
from trinity.weights.delta import SUFFIX
from trinity.weights.manifest import MANIFEST_NAME

Fault = Callable[[Path], None]


def weights_in(directory: Path) -> Path:
    """The file of the weights, or of their difference to others."""
    difference = directory / f"{WEIGHTS_FILE}{SUFFIX}"
    return difference if difference.is_file() else directory / WEIGHTS_FILE


def flip_a_bit(directory: Path) -> None:
    path = weights_in(directory)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def truncate(directory: Path) -> None:
    path = weights_in(directory)
    path.write_bytes(path.read_bytes()[:-1])


def remove_file(directory: Path) -> None:
    weights_in(directory).unlink()


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def damage_manifest(directory: Path) -> None:
    path = directory / MANIFEST_NAME
    path.write_bytes(path.read_bytes()[:-2])


def give_a_wrong_hash(directory: Path) -> None:
    path = directory / MANIFEST_NAME
    manifest = json.loads(path.read_bytes())
    manifest["files"][weights_in(directory).name]["blake3"] = "0" * 64
    path.write_text(json.dumps(manifest))


def add_a_file(directory: Path) -> None:
    (directory / "modeling.py").write_text("raise SystemExit")


def make_unreadable(directory: Path) -> None:
    """A file that cannot be opened, by root neither: it leads to itself."""
    path = weights_in(directory)
    path.unlink()
    path.symlink_to(path.name)


def put_a_directory_there(directory: Path) -> None:
    path = weights_in(directory)
    path.unlink()
    path.mkdir()


def lead_elsewhere(directory: Path) -> None:
    """A link to other weights in the directory's place."""
    other = directory.with_name(f"{directory.name}.elsewhere")
    directory.rename(other)
    flip_a_bit(other)
    directory.symlink_to(other)


def damage_a_shared_file(directory: Path) -> None:
    """All versions link this one."""
    path = directory / "config.json"
    path.write_text(path.read_text().replace("model", "madel"))


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        flip_a_bit,
        truncate,
        remove_file,
        remove_directory,
        damage_manifest,
        give_a_wrong_hash,
        add_a_file,
        make_unreadable,
        put_a_directory_there,
        lead_elsewhere,
        damage_a_shared_file,
    )
}
