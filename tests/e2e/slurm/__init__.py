"""Experiments as jobs of a SLURM on this machine. Run by `make check-slurm`, as root."""
