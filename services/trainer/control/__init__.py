"""The trainer service's own process, which never imports torch."""
