"""Long polls: a lease that is about to run out is waited for, never spun on."""

from services.buffer.operations.leasing import LeasesDelayed, LeasingEnded
from services.buffer.servicer.explorer_calls import LeasePoll


def test_a_wait_for_a_lease_never_spins() -> None:
    assert LeasePoll(LeasesDelayed("held", 0.0)).look_again_seconds == 1.0
    assert LeasePoll(LeasesDelayed("held", 12.5)).look_again_seconds == 12.5
    assert LeasePoll(LeasesDelayed("nothing is leased")).look_again_seconds is None
    assert LeasePoll(LeasingEnded("drained", "")).is_final
