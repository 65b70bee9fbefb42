"""Finished runs on disk: one compressed file a run, addressed by content, read without pickle.

A record holds tidy tables (a row a round, a client and round, a cluster and round), the labels of every round and the
matrices behind them as float32 triangles, so that a reader clusters again without training; but no weights.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cflib.arrays import FloatArray, IntArray
from cflib.files import write_atomically
from cflib.places import folder

FORMAT = 1
LARGEST = 1_500_000
"""Bytes that a committed record may have."""
TABLES = ("rounds", "clients", "clusters")
DAMAGE = (
    KeyError,
    ValueError,
    TypeError,
    OSError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a file that was cut short or altered may raise."""


class DamagedRecordError(ValueError):
    """A record file cannot be trusted: cut short, altered or of another format."""


@dataclass(frozen=True, eq=False)
class Record:
    """What one run found, and how it was made."""

    key: str
    specification: Mapping[str, Any]
    """What determined the run, in plain terms."""
    rounds: pd.DataFrame
    """One row a round, counted from 1: accuracy, F1, clustering scores, temperature."""
    clients: pd.DataFrame
    """One row a client and round: label, accuracy and F1 of the model it received."""
    clusters: pd.DataFrame
    """One row a cluster and round: size, accuracy and F1 on the server's test set."""
    labels: IntArray
    """``(rounds, n)``."""
    triangles: FloatArray
    """``(rounds kept, n (n - 1) / 2)`` float32: the matrices above their diagonal."""
    kept: IntArray
    """The rounds, counted from 1, whose matrices are kept."""
    diagonal: float = 0.0
    events: tuple[Mapping[str, Any], ...] = ()
    """What was out of the ordinary: clients excluded, flagged, clusters stopped."""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def matrix(self, round: int) -> FloatArray:
        """Return the ``(n, n)`` matrix after a round (counted from 1), NaN for clients not yet seen."""
        where = np.flatnonzero(self.kept == round)
        if not where.size:
            raise ValueError(f"no matrix of round {round} was kept: there are those of {self.kept.tolist()}")
        n = self.labels.shape[1]
        matrix = np.full((n, n), np.nan)
        matrix[np.triu_indices(n, 1)] = self.triangles[where[0]]
        matrix = np.where(np.isnan(matrix), matrix.T, matrix)
        seen = ~np.isnan(matrix).all(axis=1) if n > 1 else np.ones(1, dtype=bool)
        matrix[np.diag_indices(n)] = np.where(seen, self.diagonal, np.nan)
        return matrix

    @property
    def digest(self) -> str:
        """SHA-256 of the results alone: equal for equal runs, whenever, wherever and however often interrupted."""
        hasher = hashlib.sha256(self.key.encode())
        for name, array in sorted(self._arrays().items()):
            hasher.update(name.encode() + str(array.dtype).encode() + str(array.shape).encode() + array.tobytes())
        rest = [self.events, self.diagonal, self.specification]
        hasher.update(json.dumps(rest, sort_keys=True).encode())
        return hasher.hexdigest()

    def to_bytes(self) -> bytes:
        """Return the record as one compressed file."""
        about = {
            "format": FORMAT,
            "key": self.key,
            "specification": self.specification,
            "diagonal": self.diagonal,
            "events": self.events,
            "provenance": self.provenance,
            "digest": self.digest,
        }
        arrays = {**self._arrays(), "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(content: bytes) -> Record:
        """Read a record back; raise ``DamagedRecordError`` if anything is missing, altered or of another format."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(arrays.pop("about").tobytes())
            if about["format"] != FORMAT:
                raise DamagedRecordError(f"format {about['format']}, expected {FORMAT}")
            record = Record(
                about["key"],
                about["specification"],
                rounds=_table(arrays, "rounds"),
                clients=_table(arrays, "clients"),
                clusters=_table(arrays, "clusters"),
                labels=arrays["labels"],
                triangles=arrays["triangles"],
                kept=arrays["kept"],
                diagonal=about["diagonal"],
                events=tuple(about["events"]),
                provenance=about["provenance"],
            )
            if record.digest != about["digest"]:
                raise DamagedRecordError(f"digest {record.digest}, expected {about['digest']}")
        except DAMAGE as error:
            raise DamagedRecordError(f"not a readable record: {error}") from error
        return record

    def _arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {"labels": self.labels, "triangles": self.triangles, "kept": self.kept}
        for name in TABLES:
            table: pd.DataFrame = getattr(self, name)
            arrays |= {f"{name}/{column}": table[column].to_numpy() for column in table.columns}
        return arrays


@dataclass(frozen=True)
class Store:
    """A folder of records; writing is atomic, and a damaged file is set aside, never trusted."""

    folder: Path
    also: tuple[Path, ...] = ()
    """Further folders to read from."""
    largest: int | None = None
    """Bytes that a record here may have; a larger one goes to the first of the other folders."""

    @staticmethod
    def of(preset: str = "quick") -> Store:
        """Return the store of a preset: ``long`` and ``paper`` results are kept for the commit, others in the cache."""
        kept, cached = folder("records", "CFLIB_RECORDS"), folder("cache/records", "CFLIB_RECORDS")
        return Store(kept, (cached,), LARGEST) if preset in ("long", "paper") else Store(cached, (kept,))

    def path(self, key: str) -> Path:
        """Return where the record with this key is, or would be."""
        return self.folder / f"{key}.npz"

    def read(self, key: str) -> Record | None:
        """Return the record, or None if there is none; a damaged file is renamed ``*.damaged-…`` and reported.

        One found in another folder is copied here, unless it is too large.
        """
        record = self._read(self.path(key), key)
        for place in self.also:
            other = place / f"{key}.npz"
            if record is None and (record := self._read(other, key)) is not None:
                content = other.read_bytes()
                if self.largest is None or len(content) <= self.largest:
                    with suppress(OSError):  # a record in a folder that takes no files can be read all the same
                        write_atomically(self.path(key), content)
        return record

    def _read(self, path: Path, key: str) -> Record | None:
        if not path.exists():
            return None
        try:
            record = Record.from_bytes(path.read_bytes())
            if record.key != key:
                raise DamagedRecordError(f"it holds {record.key}")
            return record
        except DamagedRecordError as error:
            aside = path.with_suffix(f".damaged-{time.time_ns()}")
            path.rename(aside)
            warnings.warn(f"record {key} is refused ({error}); it is kept as {aside.name} and made anew", stacklevel=2)
            return None

    def write(self, record: Record) -> Path:
        """Write a record whole or not at all."""
        content = record.to_bytes()
        place = self.folder
        if self.largest is not None and len(content) > self.largest:
            place = self.also[0] if self.also else self.folder
            warnings.warn(
                f"record {record.key} has {len(content):,} bytes, more than the {self.largest:,} that are committed; "
                f"it is kept in {place.name} only: keep fewer matrices, e.g. Measures(matrices_every=10)",
                stacklevel=2,
            )
        path = place / f"{record.key}.npz"
        if not path.exists() or path.read_bytes() != content:
            write_atomically(path, content)
        return path


def _table(arrays: Mapping[str, Any], name: str) -> pd.DataFrame:
    prefix = f"{name}/"
    return pd.DataFrame({key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)})
