"""Writes the tables of docs/align-with-verl.md from the rows that the converter uses.

python -m trinity.verl.document docs/align-with-verl.md [--check]
"""

from collections.abc import Iterator, Mapping

from trinity.runtime.doc_tables import fill_tables, write_page
from trinity.verl.releases import release_table
from trinity.verl.row import KeyConversion, KeyRow
from trinity.verl.table import (
    actor,
    algorithm,
    back_ends,
    critic,
    data,
    easy_r1,
    rollout,
    supervised,
    trainer,
)

RELEASES_TABLE = "defaults by version"
TABLES: Mapping[str, tuple[KeyRow, ...]] = {
    "algorithm": algorithm.ROWS,
    "data": data.ROWS,
    "actor": actor.ROWS,
    "other back ends": back_ends.ROWS,
    "rollout": rollout.ROWS,
    "critic and rewards": critic.ROWS,
    "trainer": trainer.ROWS,
    "supervised": supervised.ROWS,
    "EasyR1": easy_r1.ROWS,
}


def main() -> None:
    """Writes the tables, or reports that they differ from the code."""
    write_page("veRL's keys and ours, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with its tables generated from the code."""
    tables = {RELEASES_TABLE: release_table}
    return fill_tables(text, lambda name: [tables[name]() if name in tables else verl_table(name)])


def verl_table(name: str = "") -> str:
    """One of the tables, as Markdown; without a name all of them under headings."""
    if not name:
        return "\n\n".join(f"### {table.capitalize()}\n\n{verl_table(table)}" for table in TABLES)
    lines = ["| veRL | Here | Note |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(_line(row) for row in _sorted(TABLES[name]))])


def _sorted(rows: tuple[KeyRow, ...]) -> Iterator[KeyRow]:
    """Sorts rows with a counterpart first."""
    order = list(KeyConversion)
    yield from sorted(rows, key=lambda row: order.index(row.conversion))


def _line(row: KeyRow) -> str:
    return f"| `{row.verl}` | {_ours(row)} | {row.note} |"


def _ours(row: KeyRow) -> str:
    match row.conversion:
        case KeyConversion.NOT_NEEDED:
            return "nothing to do"
        case KeyConversion.LEFT_OUT:
            return "left out, does not affect training"
        case KeyConversion.MISSING:
            return "none"
        case KeyConversion.PASSED:
            return "`trainer.trainer_config`, same key"
    names = [name.strip() for name in row.ours.split(",") if name.strip()]
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    main()
