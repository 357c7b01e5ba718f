"""Walks from a version of the weights to the answers that it was trained on, by digests."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.data.codec_checks import turn_digests
from trinity.data.samples import samples, step_rows
from trinity.errors import ManifestError, NotFound
from trinity.runtime.origin import batch_digest, data_row_digest, version_digest
from trinity.weights.identity import same_weights
from trinity.weights.ledger import LedgerError, LedgerKey, WeightsLedger
from trinity.weights.manifest import verify
from trinity.weights.stored import read_lineage

IDS_AT_ONCE = 500
DIGITS = 16
MATCHES, DIFFERS, DELETED, REMOVED = "matches", "differs", "deleted", "removed"


class RowOrigin(TypedDict):
    """A row whose digests were computed again; the id is None for a row of data."""

    train_step: int
    place: int
    id: str | None
    state: str
    sha256: str
    turn_sha256: list[str]


@dataclass(slots=True)
class OriginReport:
    """The result of a walk: rows, latest step first, differences, and notes on gaps."""

    rows: list[RowOrigin] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self, version: int) -> list[str]:
        """Returns the report as text."""
        first = min((row["train_step"] for row in self.rows), default=version)
        states = sorted(Counter(row["state"] for row in self.rows).items())
        num_turns = sum(len(row["turn_sha256"]) for row in self.rows)
        counted = ", ".join(f"{count} {state}" for state, count in states)
        head = f"steps {first} to {version}: {len(self.rows)} rows with {num_turns} turns"
        gone = [
            f"step {row['train_step']}, row {row['place']}, sample {row['id']}: {row['state']}, "
            f"its digest {row['sha256']}"
            for row in self.rows
            if row["state"] in (DELETED, REMOVED)
        ]
        return [f"{head}: {counted}", *gone, *self.notes, *(f"differs: {f}" for f in self.faults)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginWalk:
    """Follows the digests of a stage, and computes each again from its content.

    report = await OriginWalk(queries=queries, key=key, job_dir=None).walk_from(version=5)
    """

    queries: QueryServiceStub
    key: buffer_pb2.StageKey
    job_dir: Path | None
    """The run's directory with its weights, if it is on this machine."""
    report: OriginReport = field(default_factory=OriginReport)

    async def walk_from(self, version: int) -> OriginReport:
        """Returns the result, from the version back to the starting weights.

        Raises: NotFound when no batch of that step is recorded.
        """
        notes = self.report.notes
        for step in range(version, 0, -1):
            try:
                head, rows = await step_rows(self.queries, self.key, step)
            except NotFound:
                if step == version:
                    raise
                notes.append(f"steps up to {step} are another stage's: verify them there")
                break
            if not head.rows_sha256:
                notes.append(
                    f"steps up to {step} have no digests: an earlier release recorded them"
                )
                break
            self._check_head(head, rows)
            if step == version:
                await asyncio.to_thread(self._check_files, head.weights_after)
            records = await self._records(head, rows)
            for row in rows:
                self._check_row(head.step, row, records)
        return self.report

    def _compare(self, where: str, found: bytes, recorded: bytes) -> bool:
        if found != recorded:
            now, then = (f"{digest.hex()[:DIGITS]}..." for digest in (found, recorded))
            self.report.faults.append(f"{where}: {now}, recorded was {then}")
        return found == recorded

    def _check_head(self, head: query_pb2.StepHead, rows: Sequence[query_pb2.StepRow]) -> None:
        """Compares the digests of the batch and of the weights after it."""
        where, after = f"step {head.step}", head.weights_after
        of_rows = batch_digest(row.use.row_sha256 for row in rows)
        self._compare(f"{where}: the digest of its rows", of_rows, head.rows_sha256)
        lineage = version_digest(head.before_sha256, head.rows_sha256)
        self._compare(f"{where}: the digest of all batches", lineage, head.lineage_sha256)
        name = f"version {head.step}"
        if after.lineage_sha256:
            told = f"{name}: the digest by its trainer"
            self._compare(told, after.lineage_sha256, head.lineage_sha256)
        elif head.HasField("weights_after"):
            self.report.notes.append(f"{name}: its trainer said nothing of its batches")

    def _check_files(self, published: buffer_pb2.PublishedVersion) -> None:
        """Compares the files of the version with the database."""
        name, notes = f"version {published.version}", self.report.notes
        if self.job_dir is None or not (published.weights_sha256 or published.weights_blake3):
            notes.append("no files of the weights were looked at")
            return
        folder, stage = self.job_dir / "stages" / self.key.stage, self.key.stage
        try:
            ledger = WeightsLedger(folder=folder, stage=stage, key=LedgerKey.read(self.job_dir))
            place = published.version, published.incarnation
            entries = ledger.read()
            own = [entry for entry in entries if (entry.version, entry.incarnation) == place]
            for entry in own:
                path = folder / "weights" / entry.directory
                roots = verify(path, bytes.fromhex(entry.manifest_sha256)).roots
                if not same_weights(roots, published):
                    found, then = (w.weights_blake3 or w.weights_sha256 for w in (roots, published))
                    self._compare(f"{path}: weights", found, then)
                self._compare(f"{path}: batches", read_lineage(path), published.lineage_sha256)
            notes += [] if own else [f"{name}: its files are gone"]
        except LedgerError as error:
            notes.append(f"{name}: its files were not looked at: {error}")
        except ManifestError as error:
            self.report.faults.append(str(error))

    async def _records(
        self, head: query_pb2.StepHead, rows: Sequence[query_pb2.StepRow]
    ) -> dict[str, query_pb2.ExperienceRecord]:
        """Returns the samples of a batch with their contents, by id."""
        key = head.rows_from if head.HasField("rows_from") else self.key
        ids = [row.experience.id for row in rows if row.HasField("experience")]
        found: dict[str, query_pb2.ExperienceRecord] = {}
        for first in range(0, len(ids), IDS_AT_ONCE):
            wanted = query_pb2.ExperienceFilter(experience_ids=ids[first : first + IDS_AT_ONCE])
            async for record in samples(self.queries, key, wanted, with_content=True):
                found[record.id] = record
        return found

    def _check_row(
        self, step: int, row: query_pb2.StepRow, records: Mapping[str, query_pb2.ExperienceRecord]
    ) -> None:
        where, digest = f"step {step}, row {row.use.position}", row.use.row_sha256
        own_id, turns = row.experience.id or None, list(row.experience.turn_sha256)
        if own_id is None:
            is_same = self._compare(f"{where}: its data", data_row_digest(row.row_json), digest)
            state = MATCHES
        else:
            where += f", sample {own_id}"
            is_same = self._compare(f"{where}: its last turn", b"".join(turns[-1:]), digest)
            state = self._state_of(where, records.get(own_id, row.experience))
        self.report.rows.append(
            RowOrigin(
                train_step=step,
                place=row.use.position,
                id=own_id,
                state=state if is_same else DIFFERS,
                sha256=digest.hex(),
                turn_sha256=[turn.hex() for turn in turns],
            )
        )

    def _state_of(self, where: str, record: query_pb2.ExperienceRecord) -> str:
        recorded = list(record.turn_sha256)
        if not record.HasField("content"):
            if record.state == query_pb2.EXPERIENCE_STATE_DELETED:
                return DELETED
            if record.content_removed:
                return REMOVED
            self.report.faults.append(f"{where}: its content is missing")
            return DIFFERS
        try:
            found = turn_digests(record.content)
        except ValueError as error:
            self.report.faults.append(f"{where}: its content is damaged: {error}")
            return DIFFERS
        if len(found) != len(recorded):
            said = f"{where}: it has {len(found)} turns, recorded were {len(recorded)}"
            self.report.faults.append(said)
            return DIFFERS
        for turn, (now, then) in enumerate(zip(found, recorded, strict=True), 1):
            if not self._compare(f"{where}: turn {turn}", now, then):
                return DIFFERS  # those after it differ, too
        return MATCHES
