"""Weights from a trainer's memory into engines' memory, by torch's collectives.

The trainer offers one version at a time (`sending.WeightsOffer`): a rendezvous of its own under a
one-time name. An explorer asks for a place (`asking.ask`), its engine's ranks receive
(`receiving.Arrival`), and what came counts only if its hash is the announced one. Whatever else
happens, every part gives up in time, and the engine takes the same version from its files.
"""
