"""Users' code: its registry, its values, the processes it runs in."""
