"""What a rank would do without its protections."""

import hashlib
import shutil
from dataclasses import replace
from typing import Any

from safetensors.numpy import save_file

from tests.chaos.patching import Function
from tests.support.model_free.model import TENSOR, WEIGHTS_FILE, as_array


def write_damaged(original: Function) -> Function:
    """Have the disk change the weights after they were written."""

    def write(self: Any, *args: Any, **numbers: Any) -> Any:
        written = original(self, *args, **numbers)
        other = {TENSOR: as_array(hashlib.sha256(b"damaged").digest())}
        save_file(other, written.path / WEIGHTS_FILE)
        return written

    return write


def promise_files(original: Function) -> Function:
    """Commit a checkpoint whose files are still to come."""

    def write(self: Any, *args: Any, **numbers: Any) -> Any:
        written = original(self, *args, **numbers)
        shutil.move(written.path, written.path.with_suffix(".to-come"))
        return replace(written)

    return write
