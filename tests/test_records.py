"""Records on disk: what is written is read back whole, and what is damaged is set aside."""

from __future__ import annotations

import multiprocessing
import time
import warnings

import numpy as np
import pandas as pd
import pytest

from cflib.files import lock, write_atomically
from cflib.records import DamagedRecordError, Record, Store


def example(key: str = "abc", **changes) -> Record:
    rng = np.random.default_rng(0)
    triangles = rng.random((2, 3)).astype(np.float32)
    triangles[0, 1:] = np.nan  # client 2 was not seen in the first round
    parts = {
        "rounds": pd.DataFrame({"round": [1, 2], "accuracy": [0.5, 0.75]}),
        "clients": pd.DataFrame({"round": [1, 1, 1], "client": [0, 1, 2]}),
        "clusters": pd.DataFrame({"round": [1], "cluster": [0]}),
        "labels": np.array([[0, 0, -1], [0, 0, 1]], dtype=np.int16),
        "triangles": triangles,
        "kept": np.array([1, 2], dtype=np.int32),
        "events": ({"round": 2, "event": "clustered"},),
        "provenance": {"seconds": 1.0},
    }
    return Record(key, {"rounds": 2}, **(parts | changes))


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    store = Store(tmp_path)
    store.write(example())
    back = store.read("abc")
    assert back is not None
    assert back.digest == example().digest
    pd.testing.assert_frame_equal(back.rounds, example().rounds)
    assert back.events == example().events
    assert back.provenance == {"seconds": 1.0}


def test_a_record_found_in_another_folder_is_copied(tmp_path):
    Store(tmp_path / "cache").write(example())
    store = Store(tmp_path / "kept", (tmp_path / "cache",))
    assert store.read("abc").digest == example().digest
    assert store.path("abc").exists()
    assert store.read("nothing") is None


def test_long_and_paper_results_are_kept_where_they_can_be_committed(monkeypatch):
    monkeypatch.delenv("CFLIB_RECORDS", raising=False)
    assert Store.of("long").folder == Store.of("paper").folder == Store.of("quick").also[0]
    assert Store.of("long").folder.parts[-2:] == ("data", "records")
    assert Store.of("quick").folder.parts[-3:] == ("data", "cache", "records")


def test_matrices_are_symmetric_with_gaps_for_clients_not_seen():
    first, second = example().matrix(1), example(diagonal=2.0).matrix(2)
    assert np.isnan(first[2]).all()
    assert np.isnan(first[:, 2]).all()
    assert first[0, 1] == first[1, 0] == example().triangles[0, 0]
    np.testing.assert_array_equal(second, second.T)
    assert np.diagonal(second).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match=r"no matrix of round 3 .* \[1, 2\]"):
        example().matrix(3)


def test_digest_ignores_provenance_and_sees_results():
    assert example().digest == example(provenance={"seconds": 9.0}).digest
    assert example().digest != example(labels=np.zeros((2, 3), dtype=np.int16)).digest


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "renamed"])
def test_a_damaged_record_is_refused_and_kept_aside(tmp_path, damage):
    store = Store(tmp_path)
    path = store.write(example())
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = len(content) // 3  # a stretch, since a zip file has bytes that nobody reads
        content[middle : middle + 64] = bytes(byte ^ 0xFF for byte in content[middle : middle + 64])
        path.write_bytes(content)
    elif damage == "foreign":
        np.savez(path, something=np.arange(3))
    else:
        path.rename(store.path("xyz"))
    name = "xyz" if damage == "renamed" else "abc"
    with pytest.warns(UserWarning, match="is refused"):
        assert store.read(name) is None
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    assert not store.path(name).exists()


def test_a_record_of_another_format_is_refused():
    with pytest.raises(DamagedRecordError, match="not a readable record"):
        Record.from_bytes(b"something else")


def test_a_record_that_holds_pickled_objects_is_refused(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, about=np.array([{"format": 1}], dtype=object))
    with pytest.raises(DamagedRecordError):
        Record.from_bytes(path.read_bytes())


def test_a_record_too_large_to_commit_goes_to_the_cache_with_a_remedy(tmp_path):
    noise = np.random.default_rng(0).random((200, 4950)).astype(np.float32)
    store = Store(tmp_path / "kept", (tmp_path / "cache",), largest=1_500_000)
    with pytest.warns(UserWarning, match="matrices_every"):
        store.write(example(triangles=noise))
    assert not store.path("abc").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.read("abc") is not None
    assert not store.path("abc").exists()


def test_a_record_elsewhere_is_read_even_if_no_copy_can_be_made(tmp_path):
    Store(tmp_path / "kept").write(example())
    (tmp_path / "cache").write_text("a file, no folder")
    record = Store(tmp_path / "cache", (tmp_path / "kept",)).read("abc")
    assert record is not None
    assert record.digest == example().digest


def test_what_is_written_can_be_read_by_those_who_may_read_other_files(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "file", "content")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def hold(folder, order):
    with lock(folder / "abc.lock"):
        order.put("in")
        time.sleep(0.3)
        order.put("out")


def test_two_processes_never_hold_the_same_run(tmp_path):
    context = multiprocessing.get_context("spawn")
    order = context.Queue()
    processes = [context.Process(target=hold, args=(tmp_path, order)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [order.get(timeout=5) for _ in range(4)] == ["in", "out", "in", "out"]
