"""Claims as rows: our figure, the limit, their ratio, and whether it holds."""

from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class PerformanceClaim:
    """A figure and the limit it is held against."""

    name: str
    value: float
    limit: float
    relation: Literal["<=", ">="]

    @property
    def holds(self) -> bool:
        """True if the figure keeps to its limit."""
        return self.value <= self.limit if self.relation == "<=" else self.value >= self.limit

    def as_json(self) -> dict[str, object]:
        """Returns the claim for the committed results."""
        return {**asdict(self), "ratio": self.value / self.limit, "holds": self.holds}


def print_claims(claims: list[PerformanceClaim]) -> None:
    """One row a claim."""
    table = Table("claim", "figure", "limit", "ratio", "holds")
    for claim in claims:
        table.add_row(
            claim.name,
            f"{claim.value:.3f}",
            f"{claim.relation} {claim.limit:g}",
            f"{claim.value / claim.limit:.2f}",
            "yes" if claim.holds else "NO",
        )
    Console().print(table)
