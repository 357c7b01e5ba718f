"""Reasons for keys without effect that several keys share."""

from trinity.config.status import NoEffect

DERIVED = NoEffect("it follows from other keys, whatever is written here")
MERGED = NoEffect("engines load whole weights, with the adapter merged into them")
NO_RAY = NoEffect("there is no Ray here: services find one another by their addresses")
UNREAD_THERE = NoEffect("nothing reads it in Trinity-RFT either")
IN_DATABASE = NoEffect("rows are in the buffer's database, which has retries of its own")
TINKER_ONLY = NoEffect("it belongs to `model.tinker.enable`, which is planned")
MEGATRON_ONLY = NoEffect("it belongs to `trainer_strategy: megatron`, which is planned")
