"""Transfers weights from a trainer's memory into engines' memory, by torch's collectives.

The trainer offers one version at a time (`sending.WeightsSender`), at a rendezvous under a one-time
name. An explorer requests a slot (`rendezvous.request_transfer`), its engine's ranks receive
(`receiving.WeightsReceiver`), and the result counts only if its hash is the announced one. In any
failure every party gives up in time, and the engine loads the same version from its files.
"""
