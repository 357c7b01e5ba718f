"""Inspects what a run has stored: selection, display and export of samples."""
