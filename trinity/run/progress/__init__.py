"""Output of a run: live progress, curves, summary, TensorBoard.

All of it is made from the events that the buffer keeps, read from the first one, and services write
none of it. So a run that was killed, or is watched from elsewhere, shows the same curves.
"""
