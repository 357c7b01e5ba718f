"""Datasets on the Hugging Face hub: which revision is the newest, and its files here."""

from pathlib import Path

from services.buffer.row_source import RowSource
from trinity.config.data_files import SUFFIXES
from trinity.config.hub_names import is_offline
from trinity.errors import UserError

ANSWER_SECONDS = 10.0


def hub_cache() -> str:
    """The directory of everything that was fetched from the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return str(HF_HUB_CACHE)


def newest_revision(name: str) -> str:
    """The commit of a dataset that the hub has now, or, without the hub, the one in the cache.

    Raises: UserError when it is neither there nor here.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        if not is_offline():
            return str(HfApi().dataset_info(name, timeout=ANSWER_SECONDS).sha)
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{name} is no file or directory here and no public dataset on the hub: correct it, "
            "or set HF_TOKEN for a private one"
        ) from error
    except (HTTPError, HfHubHTTPError, OSError, ValueError):
        pass  # the hub does not answer: what is in the cache will do
    newest = Path(hub_cache()) / f"datasets--{name.replace('/', '--')}" / "refs" / "main"
    try:
        return newest.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(
            f"{name} is no file or directory here and not in the hub's cache, and the hub does "
            "not answer: fetch the dataset first, or give a path"
        ) from error


def download(source: RowSource) -> str:
    """Fetch the data files of the source's commit unless they are here; answers their directory.

    Raises: UserError when they cannot be had.
    """
    from httpx import HTTPError

    try:
        newest = _fetched(source.place, None)
        # Asked without a commit, the hub's client notes which one is the newest, for when the hub
        # is out of reach; somebody may have committed since the source's one was the newest.
        if Path(newest).name == source.revision:
            return newest
        return _fetched(source.place, source.revision)
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"dataset {source.place} cannot be fetched: {reason}") from error


def _fetched(name: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download

    return str(
        snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns=[f"*{suffix}" for suffix in SUFFIXES],
        )
    )
