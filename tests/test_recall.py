"""Rounds that two runs share are computed once, and nothing but the time changes."""

from dataclasses import replace

import numpy as np

from cflib import methods
from cflib.recall import Recall, fingerprint
from cflib.records import Store
from cflib.runs import run, run_all
from tests.test_runs import digits_run


def neighbours():
    """Two methods that part ways at a clustering in round 2, and one with other data."""
    base = digits_run(methods.fedavg(), rounds=3)
    return [base, replace(base, method=methods.flic(round=2)), replace(base, seed=1)]


def test_runs_that_share_rounds_end_as_if_alone(tmp_path):
    alone = [run(spec, store=Store(tmp_path / "alone"), progress=False).digest for spec in neighbours()]
    together = run_all(neighbours(), store=Store(tmp_path / "together"), progress=False)
    assert [record.digest for record in together] == alone


def test_shared_rounds_are_not_computed_again_and_other_seeds_are_not_mixed_up(tmp_path):
    recall, hits = Recall(), []
    for spec in neighbours():
        before = recall.hits
        run(spec, store=Store(tmp_path), progress=False, recall=recall)
        hits.append(recall.hits - before)
    assert hits[0] == 0
    assert hits[1] >= 2 * 12  # both methods train all twelve clients from the same models in the first two rounds
    assert hits[2] == 0


def test_memory_is_bounded_and_keeps_what_came_first():
    recall = Recall(most=10).turn_to("a topic")
    for question, size in (("first", 6), ("too large", 5), ("fits", 4)):
        recall.keep(question, question.upper(), size)
    assert [recall.get(q) for q in ("first", "too large", "fits")] == ["FIRST", None, "FITS"]
    assert recall.turn_to("a topic").get("first") == "FIRST"
    assert recall.turn_to("another").get("first") is None


def test_the_order_of_arrays_and_a_single_bit_change_the_fingerprint():
    a, b = np.arange(3.0), np.arange(3.0) + 1
    assert fingerprint([a, b]) != fingerprint([b, a])
    assert fingerprint([a]) != fingerprint([np.nextafter(a, 9)])
