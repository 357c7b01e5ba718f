"""Commit reports and dead letters for results."""

from services.buffer.domain.judgement import Verdict
from services.buffer.domain.states import Fate
from services.buffer.store.reports import DeadLetter, Report
from services.buffer.wire import Parcel, subject_of


def rejections(parcel: Parcel, reason: str) -> list[Report]:
    """Returns reports that none of the results in this message are stored."""
    senders = [(result.producer, result.sequence) for result in parcel.results]
    senders += [(refused.producer, refused.sequence) for refused in parcel.refused]
    return [
        Report(producer=producer, sequence=sequence, fate=Fate.REJECTED, reason=reason)
        for producer, sequence in senders
    ]


def reports_of_refused(parcel: Parcel) -> list[Report]:
    """Returns reports for results that could not be decoded."""
    return [
        Report(
            producer=refused.producer,
            sequence=refused.sequence,
            fate=Fate.REJECTED,
            reason=refused.reason,
        )
        for refused in parcel.refused
    ]


def letters_of_refused(subject: str, parcel: Parcel) -> list[DeadLetter]:
    """Returns dead letters for results that could not be decoded."""
    return [
        DeadLetter(
            subject=subject,
            reason=refused.reason,
            body=refused.body,
            producer=refused.producer,
            sequence=refused.sequence,
        )
        for refused in parcel.refused
    ]


def report_of(verdict: Verdict) -> Report:
    """Returns the report for a judged result."""
    return Report(
        producer=verdict.result.producer,
        sequence=verdict.result.sequence,
        fate=verdict.fate,
        reason=verdict.reason,
    )


def letter_of(verdict: Verdict) -> DeadLetter:
    """Returns a dead letter for a rejected result, with the wire bytes of its samples."""
    result = verdict.result
    return DeadLetter(
        subject=subject_of(result.key),
        reason=verdict.reason,
        body=b"".join(experience.body for experience in result.experiences),
        producer=result.producer,
        sequence=result.sequence,
    )
