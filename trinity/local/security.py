"""Certificates and tokens for the parts of one stack, made anew at each of its starts."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from trinity.security.folder import PLAIN, Security

OPERATOR = "operator"
LIFETIME = timedelta(days=365)
"""Longer than a stack runs without being started again."""


@dataclass(frozen=True, slots=True)
class StackSecurity:
    """The folder of all parts' folders, or None for a stack that talks plainly on loopback."""

    root: Path | None = None

    def prepare(self) -> None:
        """Issue to every part; the authority is kept, so earlier clients go on."""
        if self.root is None:
            return
        from trinity.security.issuing import Issuer, parts_of  # a tenth of a second others save

        issuer = Issuer(self.root)
        for part in parts_of({}):
            issuer.issue(part, LIFETIME)

    def of(self, part: str) -> Security:
        """What the part shows and asks for."""
        return Security(self.root / part) if self.root else PLAIN
