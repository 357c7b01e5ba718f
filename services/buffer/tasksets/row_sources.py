"""Sources of the rows of a taskset: files and hub datasets; tables are in `row_tables`.

The process that reads rows imports this for every stage that opens, so it imports little.
"""

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trinity.config.data_files import SUFFIXES
from trinity.errors import UserError

if TYPE_CHECKING:  # it takes the schema of the configuration along
    from trinity.config.training_rows import RowCheck

SQLITE = "sqlite:///"
"""The beginning of the address of a database that is a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """A source, passed as JSON on standard input: a command line would expose passwords."""

    kind: Literal["file", "hub", "sql", "environment"]
    place: str
    """A path, `owner/name`, the address of a database, or a `HubPlace`."""
    python: str = ""
    """For an environment of a hub: its Python."""
    revision: str | None = None
    """Commit of a dataset on the hub."""
    split: str = "train"
    subset_name: str | None = None
    table: str | None = None
    roots: tuple[str, ...]
    """Directories that files may be read from."""
    check: "RowCheck | None" = None
    """The check of each row, if there is one."""
    image_key: str | None = None
    """Column of images, if rows have any."""

    def to_json(self) -> str:
        """Returns the text that `from_json` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(values | {"check": self.check and self.check.model_dump(mode="json")})

    @classmethod
    def from_json(cls, text: str) -> "RowSource":
        """Returns the source of which this is the text."""
        values = json.loads(text)
        check = values.get("check")
        if check is not None:
            from trinity.config.training_rows import RowCheck

            check = RowCheck.model_validate(check)
        return cls(**values | {"roots": tuple(values["roots"]), "check": check})


ANSWER_SECONDS = 10.0


def hub_cache() -> str:
    """Returns the cache directory of the hub's client."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return str(HF_HUB_CACHE)


def dataset_cache(name: str) -> str:
    """Returns the directory of one dataset in that cache: others may be another tenant's."""
    return str(_note_of_newest(name).parents[1])


def newest_revision(name: str) -> str:
    """Returns the newest commit of a dataset on the hub, or in the cache if the hub is offline.

    Raises: UserError when it is in neither.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    from trinity.config.plan.model import is_offline

    try:
        if not is_offline():
            return str(HfApi().dataset_info(name, timeout=ANSWER_SECONDS).sha)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{name} is no file or directory here and no public dataset on the hub: correct it, "
            "or set HF_TOKEN for a private one"
        ) from error
    except (HTTPError, HfHubHTTPError, OSError, ValueError):
        pass  # the hub does not answer: fall back to the cache
    try:
        return _note_of_newest(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(
            f"{name} is no file or directory here and not in the hub's cache, and the hub does "
            "not answer: fetch the dataset first, or give a path"
        ) from error


def _note_of_newest(name: str) -> Path:
    """Returns the file in which the hub's client stores the newest known commit of a dataset."""
    return Path(hub_cache()) / f"datasets--{name.replace('/', '--')}" / "refs" / "main"


def download(source: RowSource) -> str:
    """Downloads the data files of the source's commit unless cached; returns their directory.

    It always uses this commit, even if there is a newer one.

    Raises: UserError when they cannot be downloaded.
    """
    assert source.revision is not None
    from httpx import HTTPError

    try:
        place = _fetched(source.place, source.revision)
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"dataset {source.place} cannot be fetched: {reason}") from error
    _note_newest(source.place, source.revision)
    return place


def _fetched(name: str, commit: str) -> str:
    from httpx import ConnectError, TimeoutException
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        return _snapshot(name, commit, is_here=False)
    except (ConnectError, TimeoutException, OfflineModeIsEnabled) as error:
        # The client asks the hub for a file list unless it is cached: without the hub, use the
        # files in the cache.
        try:
            return _snapshot(name, commit, is_here=True)
        except (OSError, ValueError):
            raise error from None


def _snapshot(name: str, commit: str, *, is_here: bool) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # not interactive
    return str(
        snapshot_download(
            name,
            repo_type="dataset",
            revision=commit,
            allow_patterns=[f"*{suffix}" for suffix in SUFFIXES],
            local_files_only=is_here,
        )
    )


def _note_newest(name: str, commit: str) -> None:
    """Stores the newest commit for offline use: the client does not for downloads by commit."""
    note = _note_of_newest(name)
    with suppress(OSError):  # a read-only cache keeps its own
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.parent.parent / f".main-{uuid.uuid4()}"
        partial.write_text(commit, encoding="utf-8")
        partial.replace(note)
