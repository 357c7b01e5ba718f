"""Other processes: how one is started, confined and ended."""
