"""Kills the processes of a whole stack, at random and at named points, and checks what is left.

The stack is the one of `tests.model_free`: real services, broker and database, without a model.
`python -m tests.faults.campaign --kills 500` runs long; the tests beside this file run short.
"""
