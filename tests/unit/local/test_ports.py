"""Ports do not repeat where a program seeds its random numbers, as training does."""

import random
import subprocess
import sys

from trinity.local.addresses import free_port

PICK = """
import random
random.seed(1)
from trinity.local.addresses import free_port
print(free_port())
"""


def test_two_programs_with_the_same_seed_pick_different_ports() -> None:
    picked = {subprocess.check_output([sys.executable, "-c", PICK]) for _ in range(3)}
    assert len(picked) > 1


def test_picking_a_port_leaves_the_random_numbers_as_they_are() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    free_port()
    assert random.random() == expected
