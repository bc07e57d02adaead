"""Values too large for a row, stored once under the hash of their content."""

import hashlib

from sqlalchemy import Connection

LARGEST_ROW_VALUE_BYTES = 64 * 1024


def is_large(text: str) -> bool:
    """Whether JSON text is too large for a row."""
    return len(text) > LARGEST_ROW_VALUE_BYTES or len(text.encode()) > LARGEST_ROW_VALUE_BYTES


def store(connection: Connection, text: str) -> bytes:
    """Store JSON text and return its hash.

    Done before the step's commit: if that never comes, an unreferenced artifact is left behind,
    which harms nobody and is found again when the step is repeated.
    """
    content = text.encode()
    digest = hashlib.sha256(content).digest()
    while True:
        added = connection.exec_driver_sql(
            "INSERT INTO celeriac.artifacts (hash, media_type, content)"
            " VALUES (%s, 'application/json', %s) ON CONFLICT DO NOTHING",
            (digest, content),
        )
        # It may be swept as what nobody refers to, unless it counts as stored just now.
        if added.rowcount or _touch(connection, digest):
            return digest


def _touch(connection: Connection, digest: bytes) -> bool:
    """Whether the artifact is still there, and is kept long enough to be referred to."""
    touched = connection.exec_driver_sql("SELECT celeriac.touch_artifact(%s)", (digest,))
    return bool(touched.scalar_one())
