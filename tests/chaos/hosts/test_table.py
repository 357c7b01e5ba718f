"""The exit status of a campaign says what its table says; nothing is cut here."""

import pytest

from tests.chaos.hosts.outage import ONLY_TOLD, Link, Outage
from tests.chaos.hosts.table import Slow, shortcomings

LINK: Link = ("explorer", "buffer")
FOUND = {"results_stored_once": ["run 3 of task a is stored twice"]}


def outage(link: Link, told: float | None, logged: float | None, healed: float | None) -> Outage:
    return Outage(
        link=link, way="both", seconds=30, told_after=told, logged_after=logged, healed_after=healed
    )


@pytest.mark.parametrize(
    "one",
    [
        outage(LINK, 9.0, 5.0, 1.0),
        outage(LINK, 11.2, 6.0, 0.2),
        outage(LINK, 3.0, None, 0.0),
        outage(LINK, 0.0, 12.0, 1.0),
        outage(ONLY_TOLD, None, 7.1, 0.8),
    ],
)
def test_what_either_names_in_time_and_heals_in_time_is_good(one: Outage) -> None:
    assert shortcomings([one], []) == []


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (outage(LINK, 11.2, 10.5, 1.0), "noticed after 10.5 s"),
        (outage(LINK, None, None, 1.0), "never noticed"),
        (outage(ONLY_TOLD, None, None, 1.0), "never noticed"),
        (outage(LINK, None, 5.0, 1.0), "never named by `trinity why`"),
        (outage(LINK, 3.0, 3.0, 2.5), "at work again after 2.5 s"),
        (outage(LINK, 3.0, 3.0, None), "never at work again"),
    ],
)
def test_what_was_late_or_never_is_said(one: Outage, sentence: str) -> None:
    (said,) = shortcomings([one], [])
    assert sentence in said and " - ".join(one.link) in said


def test_what_was_found_is_said() -> None:
    cut = outage(LINK, 3.0, 3.0, 1.0)
    cut.findings = FOUND
    slow = Slow(kind="250 kB/s", place="buffer", seconds=9.0, findings=FOUND)
    of_cut, of_slow = shortcomings([cut], [slow])
    assert "stored twice" in of_cut and "explorer - buffer" in of_cut
    assert "stored twice" in of_slow and "250 kB/s" in of_slow
