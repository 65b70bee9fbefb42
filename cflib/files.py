"""Files that a reader sees whole or not at all, and locks that processes share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Write a file so that a reader sees the old or the new one, never a part, whoever else writes it meanwhile.

    A durable one is on the disk when this returns.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file: a second process that wants it waits until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
