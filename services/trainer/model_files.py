"""The files that make a directory of weights a Hugging Face model: configuration and tokenizer."""

import json
import os
import shutil
from pathlib import Path

from trinity.manifest import MANIFEST_NAME, make_durable

SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"})
CHAT_TEMPLATE_NAME = "chat_template.jinja"


class ModelFiles:
    """A copy of a model's small files, linked into each version; the user's own stay unchanged.

    files = ModelFiles(copy=weights_root / ".model", dtype="float32", chat_template=None)
    files.copy_from(model_directory)
    files.link_into(version_directory)
    """

    def __init__(self, *, copy: Path, dtype: str, chat_template: str | None) -> None:
        self._copy = copy
        self._dtype = dtype
        self._chat_template = chat_template

    def copy_from(self, model_directory: Path) -> None:
        """Copies the small files, with the dtype of the published weights."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir(parents=True)
        for path in sorted(model_directory.iterdir()):
            if _is_small_file(path):
                shutil.copyfile(path, self._copy / path.name)
        self._note_dtype()
        if self._chat_template is not None:
            (self._copy / CHAT_TEMPLATE_NAME).write_text(self._chat_template)
        for path in self._copy.iterdir():
            make_durable(path)

    def link_into(self, directory: Path) -> frozenset[str]:
        """Hard-links the files into a directory; returns their names, all of them durable."""
        paths = sorted(self._copy.iterdir())
        for path in paths:
            os.link(path, directory / path.name)
        return frozenset(path.name for path in paths)

    def _note_dtype(self) -> None:
        path = self._copy / "config.json"
        config = json.loads(path.read_text())
        config.pop("torch_dtype", None)
        path.write_text(json.dumps({**config, "dtype": self._dtype}, indent=2, sort_keys=True))


def _is_small_file(path: Path) -> bool:
    """Returns False for weights and for the index of their shards."""
    if path.name == MANIFEST_NAME or path.name.endswith(".index.json"):
        return False
    return path.is_file() and path.suffix in SUFFIXES
