"""Output of a run: live progress, curves, summary, TensorBoard.

The output is computed from the buffer's stored events, read from the first one, and not written by
services. So a run that was killed, or is watched from elsewhere, shows the same curves.
"""
