"""What the tests here share."""

from tests.faults.shared_arena import arena as arena
