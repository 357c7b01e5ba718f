"""A visitor's share of Studio: what is beyond it waits, and no other visitor does."""

import threading

from trinity.studio.visitors import (
    MAX_SCRIPTS,
    MAX_UNITS,
    OWNER,
    UNITS_A_SECOND,
    Share,
    Shares,
    Visitor,
)


def test_frames_beyond_the_share_wait_until_it_has_grown() -> None:
    now = [0.0]
    share = Share(clock=lambda: now[0])
    assert share.wait_seconds(MAX_UNITS) == 0.0
    assert share.wait_seconds(UNITS_A_SECOND) == 1.0
    assert share.wait_seconds(UNITS_A_SECOND) == 2.0
    now[0] = 1e6
    assert share.wait_seconds(MAX_UNITS) == 0.0, "a pause gives no more than that"
    assert share.wait_seconds(UNITS_A_SECOND) == 1.0


def test_so_many_pages_of_a_visitor_are_made_at_once() -> None:
    share, other = Share(), Share()
    running, ending = threading.Semaphore(0), threading.Event()

    def make() -> None:
        with share.script() as has_turn, share.script() as has_it_still:
            assert has_turn and has_it_still, "a part within a page needs no second turn"
            running.release()
            ending.wait()

    threads = [threading.Thread(target=make) for _ in range(MAX_SCRIPTS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        running.acquire()
    with share.script(seconds=0.0) as has_turn:
        assert not has_turn
    with other.script(seconds=0.0) as has_turn:
        assert has_turn
    ending.set()
    for thread in threads:
        thread.join()
    with share.script(seconds=0.0) as has_turn:
        assert has_turn


def test_all_sign_ins_of_a_visitor_have_one_share() -> None:
    shares = Shares()
    first, again = (Visitor(name="ann", is_owner=False, token=token) for token in ("a", "b"))
    assert shares.of(first) is shares.of(again)
    assert shares.of(first) is not shares.of(OWNER)
