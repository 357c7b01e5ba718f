"""Experiences that are also written outside of the buffer, once each and in order."""
