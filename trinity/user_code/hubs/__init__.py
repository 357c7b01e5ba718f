"""Environments of hubs: each hub's packages are in an environment apart, asked over a process."""
