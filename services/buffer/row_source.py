"""Where the rows of a taskset lie, told to the process that reads them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class RowSource(BaseModel):
    """It is told as JSON on standard input: others can see a command line, and passwords in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["file", "hub", "sql"]
    place: str
    """A path, `owner/name`, or a database's address."""
    revision: str | None = None
    """Of a dataset on the hub: the commit whose rows are meant."""
    split: str = "train"
    subset_name: str | None = None
    table: str | None = None
    roots: tuple[str, ...] = ("/",)
    """Directories that files may be read from."""
