"""Which test files take half a minute or more, and stand late in the alphabet."""

LONG_FILES = (
    "integration/trainer/test_service.py",
    "integration/explorer/test_transfers.py",
    "integration/security/test_secrets.py",
    "integration/trainer/test_service_begins.py",
    "integration/trainer/test_two_ranks.py",
    "integration/trainer/test_learner.py",
    "integration/stalls/test_recovery.py",
    "integration/stalls/test_endings.py",
    "integration/telemetry/test_whole_chain.py",
    "integration/together/test_two_tenants.py",
    "integration/together/test_a_rank_dies.py",
    "integration/together/test_two_explorers.py",
    "integration/together/test_two_experiments.py",
)
