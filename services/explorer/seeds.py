"""Seeds of single calls: hashed, and the same again whenever the same run is repeated."""

import hashlib
from dataclasses import dataclass

BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBase:
    """The inputs to a run's seeds; neither the attempt nor anything random is among them."""

    experiment_seed: int
    stage: str
    kind: str
    taskset: str
    explore_step: int
    position: int
    run: int
    model: str = ""
    """The model within a run; empty for the policy."""

    def seed_of_call(self, call: int) -> int:
        """Returns a 63-bit seed for the run's call number `call`, counted from 0."""
        parts = (
            self.experiment_seed,
            self.stage,
            self.kind,
            self.taskset,
            self.explore_step,
            self.position,
            self.run,
            call,
            *([self.model] if self.model else []),
        )
        text = "\0".join(map(str, parts)).encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - BITS)
