"""Which keys of the configuration are read, by whom: recorded in real runs."""
