"""Long polls: a lease that is about to run out is waited for, never spun on."""

from services.buffer.operations.leasing import LeasesDelayed, LeasingEnded
from services.buffer.servicer.explorer_calls import look_of


def test_a_wait_for_a_lease_never_spins() -> None:
    assert look_of(LeasesDelayed("held", 0.0)).look_again_seconds == 1.0
    assert look_of(LeasesDelayed("held", 12.5)).look_again_seconds == 12.5
    assert look_of(LeasesDelayed("nothing is leased")).look_again_seconds is None
    assert look_of(LeasingEnded("drained", "")).is_final
