"""Whole stacks whose programs are forked from a process that has imported what they import.

with forked_programs(MODEL_FREE, STACKS):
    ...    # `python -m trinity.run.local.supervisor` and `trinity run` are forked, and all below

A forked program is a child of the process that started it. It has the arguments, variables, folder,
descriptors and session that it was started with, and shows them in /proc; it ends with the same
code. It starts its own programs in the same way: a helper process, forked before the program began
and so without threads, forks each of them and makes it a child of the program. What cannot be
taken on, as a variable that libraries read when they are imported, leads to a real start. All that
are forked from one image share the seed of hashes: what they come to is compared with real starts.
"""
