"""Certificates and tokens for the parts of one stack, reissued at each start."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from trinity.security.folder import PLAIN, Security

OPERATOR = "operator"
LIFETIME = timedelta(days=365)
"""Longer than a stack runs without a restart."""


@dataclass(frozen=True, slots=True)
class StackSecurity:
    """The folder of all parts' folders, or None for a stack in plaintext on loopback."""

    root: Path | None = None

    def prepare(self) -> None:
        """Issues credentials to every part; the authority is kept: earlier clients stay valid."""
        if self.root is None:
            return
        from trinity.security.issuing import Issuer, parts_of  # takes a tenth of a second

        issuer = Issuer(self.root)
        for part in parts_of({}):
            issuer.issue(part, LIFETIME)

    def of(self, part: str) -> Security:
        """Returns the credentials of a part."""
        return Security(self.root / part) if self.root else PLAIN
