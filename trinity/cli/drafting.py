"""`trinity config init`: writes what was asked for."""

from pathlib import Path

from trinity.cli.writing import writing
from trinity.config.check import check_file
from trinity.config.draft import Wishes, draft
from trinity.errors import UserError


def write_draft(output: Path, wishes: Wishes) -> None:
    """Write it, unless a file is there, and say what is still to be mended."""
    if output.exists():
        raise UserError(f"{output} exists: give another FILE")
    with writing(output, "give another FILE"), output.open("x", encoding="utf-8") as file:
        file.write(draft(wishes))
    mistakes = check_file(output).mistakes
    for mistake in mistakes:
        print(f"to mend: {mistake}")
    print(f"wrote {output}; next: trinity run --config {output} --dry-run")
