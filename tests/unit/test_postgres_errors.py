"""Which errors of a database are an outage: those that another try may mend."""

import psycopg
import pytest
import sqlalchemy as sa

from trinity.errors import Unavailable
from trinity.postgres import map_database_errors


@pytest.mark.parametrize(
    "cause", [psycopg.errors.AdminShutdown("bye"), psycopg.errors.DeadlockDetected("dead")]
)
def test_what_may_pass_is_an_outage(cause: psycopg.Error) -> None:
    with pytest.raises(Unavailable), map_database_errors():
        raise sa.exc.OperationalError("INSERT", {}, cause)


def test_a_value_that_no_index_can_hold_is_none() -> None:
    cause = psycopg.errors.ProgramLimitExceeded("index row size 2816 exceeds maximum 2704")
    with pytest.raises(sa.exc.OperationalError), map_database_errors():
        raise sa.exc.OperationalError("INSERT", {}, cause)
