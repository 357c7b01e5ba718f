"""`trinity config init`: writes a first configuration."""

from pathlib import Path

from trinity.cli.writing import writing
from trinity.config.check import check_file
from trinity.config.docs.template import Wishes, draft
from trinity.errors import UserError


def write_draft(output: Path, wishes: Wishes) -> None:
    """Writes the file, unless it exists, and prints what is still to be fixed."""
    if output.exists():
        raise UserError(f"{output} exists: give another FILE")
    with writing(output, "give another FILE"), output.open("x", encoding="utf-8") as file:
        file.write(draft(wishes))
    errors = check_file(output).mistakes
    for error in errors:
        print(f"fix: {error}")
    print(f"wrote {output}; next: trinity run --config {output} --dry-run")
