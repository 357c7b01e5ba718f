"""Which errors of a database are an outage: those that another try may mend."""

import psycopg
import pytest
import sqlalchemy as sa

from trinity.errors import Unavailable
from trinity.runtime.postgres import map_database_errors


@pytest.mark.parametrize(
    "cause", [psycopg.errors.AdminShutdown("bye"), psycopg.errors.DeadlockDetected("dead")]
)
def test_what_may_pass_is_an_outage(cause: psycopg.Error) -> None:
    with pytest.raises(Unavailable), map_database_errors():
        raise sa.exc.OperationalError("INSERT", {}, cause)


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_database_that_takes_no_changes_for_now_is_one(is_wrapped: bool) -> None:
    """It would else end the process, again and again, and no wait would say why."""
    cause = psycopg.errors.ReadOnlySqlTransaction(
        "cannot execute INSERT in a read-only transaction"
    )
    error = sa.exc.InternalError("INSERT", {}, cause) if is_wrapped else cause
    said = "takes no changes: cannot execute INSERT"
    with pytest.raises(Unavailable, match=said), map_database_errors():
        raise error


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_session_that_was_ended_for_its_silence_is_one(is_wrapped: bool) -> None:
    """Results that a frozen buffer was storing would else be put away as ones that cannot be."""
    cause = psycopg.errors.IdleInTransactionSessionTimeout("terminating connection")
    error = sa.exc.InternalError("INSERT", {}, cause) if is_wrapped else cause
    with pytest.raises(Unavailable), map_database_errors():
        raise error


def test_a_mistake_of_ours_is_none() -> None:
    cause = psycopg.errors.UndefinedColumn("column x does not exist")
    with pytest.raises(sa.exc.ProgrammingError), map_database_errors():
        raise sa.exc.ProgrammingError("SELECT x", {}, cause)
    with pytest.raises(psycopg.errors.UndefinedColumn), map_database_errors():
        raise cause


def test_a_value_that_no_index_can_hold_is_none() -> None:
    cause = psycopg.errors.ProgramLimitExceeded("index row size 2816 exceeds maximum 2704")
    with pytest.raises(sa.exc.OperationalError), map_database_errors():
        raise sa.exc.OperationalError("INSERT", {}, cause)
