"""What producers are told of their results, and what is kept of those that are not stored."""

from services.buffer.domain.judgement import Verdict
from services.buffer.domain.states import Fate
from services.buffer.store.reports import DeadLetter, Report
from services.buffer.wire import Parcel, subject_of


def rejections(parcel: Parcel, reason: str) -> list[Report]:
    """Tell whoever sent something of this that none of it is stored."""
    senders = [(one.producer, one.sequence) for one in parcel.results]
    senders += [(one.producer, one.sequence) for one in parcel.refused]
    return [
        Report(producer=producer, sequence=sequence, fate=Fate.REJECTED, reason=reason)
        for producer, sequence in senders
    ]


def reports_of_refused(parcel: Parcel) -> list[Report]:
    """What producers are told of results that could not be understood."""
    return [
        Report(producer=one.producer, sequence=one.sequence, fate=Fate.REJECTED, reason=one.reason)
        for one in parcel.refused
    ]


def letters_of_refused(subject: str, parcel: Parcel) -> list[DeadLetter]:
    """What is kept of results that could not be understood."""
    return [
        DeadLetter(
            subject=subject,
            reason=one.reason,
            body=one.body,
            producer=one.producer,
            sequence=one.sequence,
        )
        for one in parcel.refused
    ]


def report_of(verdict: Verdict) -> Report:
    """What the producer is told of a result that was judged."""
    return Report(
        producer=verdict.result.producer,
        sequence=verdict.result.sequence,
        fate=verdict.fate,
        reason=verdict.reason,
    )


def letter_of(verdict: Verdict) -> DeadLetter:
    """What is kept of a result that was understood and refused: its samples' wire bytes."""
    result = verdict.result
    return DeadLetter(
        subject=subject_of(result.key),
        reason=verdict.reason,
        body=b"".join(one.body for one in result.experiences),
        producer=result.producer,
        sequence=result.sequence,
    )
