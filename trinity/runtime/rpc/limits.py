"""Limits that servers and channels agree on."""

from collections.abc import Sequence

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Limit of a message that a server accepts; larger content is uploaded in chunks.

Parsed, a request of many tiny parts takes forty times its size.
"""
MAX_METADATA_BYTES = 16 * 1024
CHUNK_BYTES = 1024 * 1024
CALL_SECONDS = 10.0
"""Deadline of a call that should be quick."""
MAX_WAIT_SECONDS = 60.0
"""Longest time that a long poll may wait."""

KEEPALIVE_SECONDS = 2.0
"""Idle time of a connection before a keepalive ping."""
KEEPALIVE_TIMEOUT_SECONDS = 4.0
"""Timeout of that ping. gRPC's own threads answer, however busy Python is."""

KEEPALIVE: Sequence[tuple[str, int]] = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
    # This one limits unacknowledged TCP data; for the ping's answer grpcio 1.85 uses only the next.
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)
MIN_PING_INTERVAL_MILLISECONDS = int(KEEPALIVE_SECONDS * 1000) // 2
"""A client that pings more often is not ours."""
LARGE_RESPONSE_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.http2.lookahead_bytes", 8 * 1024 * 1024),
    ("grpc.tcp_read_chunk_size", 1024 * 1024),
    ("grpc.experimental.tcp_min_read_chunk_size", 256 * 1024),
    ("grpc.experimental.tcp_max_read_chunk_size", 4 * 1024 * 1024),
)
"""Reads megabytes in few pieces: a batch of four takes half the time of gRPC's defaults."""
CHANNEL_SIZES: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
)
SERVER_SIZES: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
)
