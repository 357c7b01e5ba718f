"""What a rank tells its service when a stage fails on it."""

import pytest

from services.trainer.rank.__main__ import failure_of
from trinity.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RunFailed,
    TrinityError,
    UserError,
)


@pytest.mark.parametrize(
    "kind", [InvalidRequest, NotFound, PreconditionFailed, RunFailed, UserError]
)
def test_what_only_a_person_can_change_is_not_tried_again(kind: type[TrinityError]) -> None:
    failed = failure_of(kind("`tasks` cannot be read"))
    assert (failed.reason, failed.can_retry) == ("`tasks` cannot be read", False)


def test_what_may_pass_is_tried_again() -> None:
    failed = failure_of(ConnectionResetError("peer"))
    assert (failed.reason, failed.can_retry) == ("ConnectionResetError: peer", True)
