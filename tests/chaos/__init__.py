"""Kills the processes of a whole stack, at random and at named points, and checks what is left.

The stack is the one of `tests.support.model_free`: real services, broker and database, and no
model. `python -m tests.chaos.campaign --kills 500` runs long; the tests
beside this file run short.
"""
