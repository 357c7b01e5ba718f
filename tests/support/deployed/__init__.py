"""The compose file's processes without containers: its own entry points, variables and secrets."""
