"""Source of the rows of a taskset, as passed to the reader process."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class RowSource(BaseModel):
    """A source, passed as JSON on standard input: a command line would expose passwords."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["file", "hub", "sql"]
    place: str
    """A path, `owner/name`, or the address of a database."""
    revision: str | None = None
    """Commit of a dataset on the hub."""
    split: str = "train"
    subset_name: str | None = None
    table: str | None = None
    roots: tuple[str, ...] = ("/",)
    """Directories that files may be read from."""
