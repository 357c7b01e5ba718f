"""The limits that servers and channels agree on."""

from collections.abc import Sequence

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""What a server takes in one message; larger content is uploaded in chunks. Parsed, a request of
many tiny parts is forty times its size."""
MAX_METADATA_BYTES = 16 * 1024
CHUNK_BYTES = 1024 * 1024
CALL_SECONDS = 10.0
"""Deadline of a call that has no reason to take long."""
MAX_WAIT_SECONDS = 60.0
"""Longest a long poll may wait for something to happen."""

SILENCE_SECONDS = 2.0
"""Of a connection, after which its other end is asked for a sign of life."""
SIGN_OF_LIFE_SECONDS = 4.0
"""How long that may take. gRPC's own threads answer, however busy Python is."""

KEEPALIVE: Sequence[tuple[str, int]] = (
    ("grpc.keepalive_time_ms", int(SILENCE_SECONDS * 1000)),
    # This one bounds what TCP does not confirm, and grpcio 1.85 heeds only the next for the answer.
    ("grpc.keepalive_timeout_ms", int(SIGN_OF_LIFE_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(SIGN_OF_LIFE_SECONDS * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)
LEAST_PING_MILLISECONDS = int(SILENCE_SECONDS * 1000) // 2
"""What comes more often than this is no client of ours."""
LARGE_ANSWERS: Sequence[tuple[str, int]] = (
    ("grpc.http2.lookahead_bytes", 8 * 1024 * 1024),
    ("grpc.tcp_read_chunk_size", 1024 * 1024),
    ("grpc.experimental.tcp_min_read_chunk_size", 256 * 1024),
    ("grpc.experimental.tcp_max_read_chunk_size", 4 * 1024 * 1024),
)
"""Megabytes are read in few pieces: a batch of four takes half the time of gRPC's defaults."""
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
