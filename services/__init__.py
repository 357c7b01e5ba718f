"""The four services; each runs alone as `python -m services.<name>`."""
