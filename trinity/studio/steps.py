"""Train steps as pages show them: their rows, the samples that they left out, and quantiles."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.data.samples import samples, step_rows
from trinity.run.progress.view import change_text
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.studio.connection import OpenRun
from trinity.studio.experiences import ExperienceRow, experience_row

MAX_GENERATED = 5_000
"""Samples of the step's explore steps that are read; the page says where there are more."""
MAX_EXPLORE_STEPS = 16
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Quantiles that are shown."""
MAX_DATA_CHARS = 2_000
ELSEWHERE = "trained on in another step"
WAITS = "may be trained on in a later step"
NOT_SEEN = "its group is not complete, or the pipeline has not seen it yet"
AWAITS = "waits for its reward, and its group with it"
TOO_LATE = "came after its run was given up, or after the stage had ended"
OTHER_ATTEMPT = "another attempt at its run had won"
_REASONS = {
    "batched": ELSEWHERE,
    "ready": WAITS,
    "raw": NOT_SEEN,
    "awaiting": AWAITS,
    "late": TOO_LATE,
    "superseded": OTHER_ATTEMPT,
}
QUANTITIES: Mapping[str, Callable[[ExperienceRow], float | None]] = {
    "reward": lambda sample: sample.reward,
    "advantage": lambda sample: sample.advantage,
    "response tokens": lambda sample: float(sample.response_length),
    "all tokens": lambda sample: float(sample.num_tokens),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRow:
    """A row of a batch; texts are untrusted."""

    position: int
    advantage: float
    weight: float
    mean_ratio: float | None
    trained_advantage: float | None
    sample: ExperienceRow | None
    """None for a row of training data."""
    data: str = ""
    """The row of training data as JSON, cut."""
    row_index: int = 0

    @property
    def influence(self) -> float:
        """The size of advantage times weight: 0 does not move the policy."""
        used = self.trained_advantage if self.trained_advantage is not None else self.advantage
        return abs(used * self.weight) if math.isfinite(used * self.weight) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A train step with its rows."""

    step: int
    num_rows: int
    incarnation: int
    times_trained: int
    version_before: int | None
    version_after: int | None
    samples_key: buffer_pb2.StageKey
    """The stage that holds its samples."""
    samples_from: str
    """That stage in words, where it is another one."""
    metrics: Mapping[str, float]
    changes: tuple[str, ...]
    rows: tuple[TrainedRow, ...]

    @property
    def samples(self) -> tuple[ExperienceRow, ...]:
        """The samples of its rows."""
        return tuple(row.sample for row in self.rows if row.sample is not None)

    @property
    def explore_steps(self) -> tuple[int, ...]:
        """The explore steps that its samples came from."""
        return tuple(sorted({sample.explore_step for sample in self.samples}))

    @property
    def data_rows(self) -> tuple[TrainedRow, ...]:
        """Its rows of training data."""
        return tuple(row for row in self.rows if row.sample is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The samples of some explore steps."""

    samples: tuple[ExperienceRow, ...] = ()
    is_cut: bool = False


async def step_view(opened: OpenRun, stage: buffer_pb2.StageKey, step: int) -> StepView:
    """Returns a train step with all its rows.

    Raises: TrinityError if the step has no batch.
    """
    with translate_rpc_errors():
        head, rows = await step_rows(opened.queries, stage, step)
    is_elsewhere = head.HasField("rows_from")
    newest = head.trained[-1] if head.trained else None
    return StepView(
        step=head.step,
        num_rows=head.num_rows,
        incarnation=newest.incarnation if newest is not None else head.incarnation,
        times_trained=len(head.trained) + head.num_trained_left_out,
        version_before=_version(head, "weights_before"),
        version_after=_version(head, "weights_after"),
        samples_key=head.rows_from if is_elsewhere else stage,
        samples_from=_elsewhere(head) if is_elsewhere else "",
        metrics=dict(head.batch_metrics) | (dict(newest.metrics) if newest is not None else {}),
        changes=tuple(map(change_text, head.changes)),
        rows=tuple(map(_row, rows)),
    )


def _version(head: query_pb2.StepHead, name: str) -> int | None:
    if not head.HasField(name):
        return None
    found: buffer_pb2.PublishedVersion = getattr(head, name)
    return found.version


def _elsewhere(head: query_pb2.StepHead) -> str:
    run = f" of run {head.rows_from_run}" if head.rows_from_run else ""
    return f"samples of stage {head.rows_from.stage}{run}"


def _row(row: query_pb2.StepRow) -> TrainedRow:
    use = row.use
    is_sample = row.HasField("experience")
    return TrainedRow(
        position=use.position,
        advantage=use.advantage,
        weight=use.weight,
        mean_ratio=use.mean_ratio if use.HasField("mean_ratio") else None,
        trained_advantage=use.trained_advantage if use.HasField("trained_advantage") else None,
        sample=experience_row(row.experience) if is_sample else None,
        data=row.row_json[:MAX_DATA_CHARS],
        row_index=row.row_index,
    )


async def generated_for(opened: OpenRun, view: StepView) -> Generated:
    """Returns the samples of the explore steps that a train step took its rows from.

    Raises: TrinityError.
    """
    found: list[ExperienceRow] = []
    steps = view.explore_steps[-MAX_EXPLORE_STEPS:]
    is_cut = len(steps) < len(view.explore_steps)
    for explore_step in reversed(steps):
        left = MAX_GENERATED - len(found)
        wanted = query_pb2.ExperienceFilter(explore_step=explore_step)
        with translate_rpc_errors():
            records = [
                record
                async for record in samples(
                    opened.queries, view.samples_key, wanted, limit=left + 1
                )
            ]
        found += map(experience_row, records[:left])
        if len(records) > left:
            return Generated(samples=tuple(found), is_cut=True)
    return Generated(samples=tuple(found), is_cut=is_cut)


class RowOrder(StrEnum):
    """An order of the rows of a batch."""

    INFLUENCE = "largest influence"
    POSITION = "position"


def ordered_rows(rows: Iterable[TrainedRow], order: RowOrder) -> list[TrainedRow]:
    """Returns the rows in an order; equal ones by position."""
    if order is RowOrder.POSITION:
        return sorted(rows, key=lambda row: row.position)
    return sorted(rows, key=lambda row: (-row.influence, row.position))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Samples that were not in the batch, for one reason."""

    state: str
    reason: str
    count: int

    @property
    def condition(self) -> str:
        """The condition of the page Experiences that finds them."""
        return f"state={self.state}"


def left_out(view: StepView, generated: Generated) -> list[LeftOut]:
    """Returns why samples of the same explore steps are not in the batch, the commonest first."""
    own = {sample.id for sample in view.samples}
    counted = Counter(
        (sample.state, sample.reason or _REASONS.get(sample.state, sample.state))
        for sample in generated.samples
        if sample.id not in own
    )
    return [
        LeftOut(state=state, reason=reason, count=count)
        for (state, reason), count in counted.most_common()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One quantity over some samples."""

    quantity: str
    of: str
    """The samples in words."""
    num_values: int
    mean: float
    quantiles: tuple[float, ...]
    """At `SHARES`."""


def distributions(view: StepView, generated: Generated) -> list[Distribution]:
    """Returns the distribution of each quantity for generated and for trained samples."""
    pairs = (("generated", generated.samples), ("trained on", view.samples))
    found = (
        distribution(name, of, [value_of(sample) for sample in listed])
        for name, value_of in QUANTITIES.items()
        for of, listed in pairs
    )
    return [known for known in found if known is not None]


def distribution(quantity: str, of: str, values: Sequence[float | None]) -> Distribution | None:
    """Returns mean and quantiles of the numbers among the values; None without any."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if not known.size:
        return None
    return Distribution(
        quantity=quantity,
        of=of,
        num_values=int(known.size),
        mean=float(known.mean()),
        quantiles=tuple(float(value) for value in np.quantile(known, SHARES)),
    )
