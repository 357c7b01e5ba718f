"""Inspects the data of a run: selection, display and export of samples."""
