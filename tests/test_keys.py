"""Content addresses: equal inputs give equal keys in any process, changed inputs do not, lambdas are refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt

import numpy as np
import pytest
from numpy.linalg import norm
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import cosine_distances

from cflib import methods
from cflib.choices import at_round
from cflib.experiment import Measures
from cflib.keys import NoStableNameError, canonical, key
from cflib.protocol import Schedule


def outside(matrix):
    return matrix


@dataclass(frozen=True)
class Plain:
    size: int
    name: str = field(default="x", metadata={"determines": False})
    settings: dict = field(default_factory=dict)


def test_key_is_the_same_in_another_process():
    code = "from cflib import methods; from cflib.keys import key; print(key(methods.flic(round=7)))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == key(methods.flic(round=7))


def test_a_changed_setting_changes_the_key():
    keys = {key(m) for m in (methods.flic(), methods.flic(round=7), methods.flic(self_loops=False), methods.ocfl())}
    assert len(keys) == 4


def test_a_name_for_people_does_not_enter_the_key_and_neither_do_defaults():
    assert key(methods.flic()) == key(replace(methods.flic(), name="other"))
    assert canonical(Plain(3, "y")) == canonical(Plain(3, settings={}))
    assert canonical(Schedule(share=0.5)) == {"is": "Schedule", "share": 0.5}
    assert canonical(Plain(3, settings={"a": 1}))["settings"] == {"a": 1}


def test_a_function_from_outside_enters_with_its_source():
    assert set(canonical(outside)) == {"function", "source", "uses"}
    assert canonical(at_round) == {"function": "cflib.choices.at_round"}
    assert canonical(partial(at_round, round=3))["with"] == {"round": 3}


BETA = 2.0


def scaled(matrix, power=BETA):
    return outside(matrix) * BETA**power


def recursive(n):
    return 1 if n == 0 else recursive(n - 1)


def test_what_a_function_from_outside_uses_enters_too(monkeypatch):
    before = key(scaled)
    monkeypatch.setitem(globals(), "BETA", 3.0)
    assert key(scaled) != before
    assert canonical(scaled)["uses"]["outside"]["function"].endswith("outside")
    assert key(recursive)


def in_a_comprehension(matrix):
    return [outside(row) for row in matrix]


def in_an_inner_function(matrix):
    def scale(row):
        return row * BETA

    return scale(matrix)


@pytest.mark.parametrize(("function", "used"), [(in_a_comprehension, "outside"), (in_an_inner_function, "BETA")])
def test_what_it_uses_in_comprehensions_and_inner_functions_enters_too(function, used, monkeypatch):
    before = key(function)
    monkeypatch.setitem(globals(), used, recursive if used == "outside" else 3.0)
    assert key(function) != before


def test_a_module_of_ones_own_enters_with_its_source_and_an_installed_one_does_not(tmp_path, monkeypatch):
    (tmp_path / "own_helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "own_study.py").write_text(
        "import numpy as np\nimport own_helper\n\n\ndef mine(d):\n    return np.abs(own_helper.double(d))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_study import mine

    uses = canonical(mine)["uses"]
    assert list(uses) == ["own_helper"]
    (tmp_path / "own_helper.py").write_text("def double(x):\n    return x + x\n")
    assert canonical(mine)["uses"] != uses


def test_what_a_module_of_ones_own_imports_enters_too(tmp_path, monkeypatch):
    (tmp_path / "own_deep.py").write_text("FACTOR = 2\n")
    (tmp_path / "own_middle.py").write_text(
        "import os\nfrom own_deep import FACTOR\n\n\ndef double(x):\n    return x\n"
    )
    (tmp_path / "own_top.py").write_text("import own_middle\n\n\ndef mine(d):\n    return own_middle.double(d)\n")
    monkeypatch.syspath_prepend(tmp_path)
    from own_top import mine

    before = key(mine)
    (tmp_path / "own_deep.py").write_text("FACTOR = 4\n")
    assert key(mine) != before


OWN_USES = {
    "import own_{0}.helpers\n\n\ndef mine(d):\n    return own_{0}.helpers.f(d)\n": "a folder",
    "def mine(d):\n    from own_{0}.helpers import f\n\n    return f(d)\n": "inside",
    "class A:\n    @staticmethod\n    def mine(d):\n        import own_{0}.helpers as h\n\n        return h.f(d)\n\n\n"
    "mine = A.mine\n": "inside a method",
}


@pytest.mark.parametrize("starts", [True, False], ids=["package", "plain folder"])
@pytest.mark.parametrize("study", OWN_USES, ids=OWN_USES.values())
def test_however_a_module_of_ones_own_is_imported_it_enters(study, starts, tmp_path, monkeypatch):
    name = f"p{list(OWN_USES).index(study)}{int(starts)}"
    place = tmp_path / f"own_{name}"
    place.mkdir()
    if starts:
        (place / "__init__.py").write_text("")
    (place / "helpers.py").write_text("def f(d):\n    return d\n")
    (place / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nNAME = 'é'\n".encode("latin-1"))
    (place / "template.py").write_text("{{ no Python }}")
    (tmp_path / f"own_study_{name}.py").write_text(study.format(name))
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module(f"own_study_{name}").mine
    before = key(mine)
    assert key(mine) == before
    (place / "helpers.py").write_text("def f(d):\n    return 2 * d\n")
    assert key(mine) != before


def test_an_array_of_objects_has_no_stable_name():
    with pytest.raises(NoStableNameError, match="array of Python objects"):
        key(np.array([{}, "x"], dtype=object))


@dataclass(frozen=True)
class Cut:
    groups: int = 2

    def labels(self, n):
        return np.arange(n) % self.groups * BETA


CUT = Cut()


def by_a_class(matrix):
    return Cut(3).labels(len(matrix))


def by_an_object(matrix):
    return CUT.labels(len(matrix))


def other_labels(self, n):
    return np.zeros(n, dtype=int)


@pytest.mark.parametrize("function", [by_a_class, by_an_object])
def test_a_class_of_ones_own_enters_with_what_is_written_in_it(function, monkeypatch):
    before = key(function)
    monkeypatch.setitem(globals(), "BETA", 3.0)
    assert key(function) != before
    monkeypatch.undo()
    assert key(function) == before
    monkeypatch.setattr(Cut, "labels", other_labels)
    assert key(function) != before


def by_packages(matrix):
    return KMeans(2).fit_predict(cdist(matrix, matrix) + norm(matrix) + sqrt(cosine_distances(matrix).sum()))


def test_what_came_with_a_package_enters_by_its_name():
    assert canonical(by_packages)["uses"] == {
        "KMeans": "sklearn.cluster._kmeans.KMeans",
        "cdist": {"function": "scipy.spatial.distance.cdist"},
        "cosine_distances": {"function": "sklearn.metrics.pairwise.cosine_distances"},
        "norm": {"function": "numpy.linalg.norm"},
        "sqrt": {"function": "math.sqrt"},
    }
    assert canonical(cdist) == {"function": "scipy.spatial.distance.cdist"}


def test_whole_numbers_lists_and_tuples_set_the_same_thing():
    assert canonical(1.0) == canonical(np.float64(1)) == 1
    assert key(Schedule(share=1)) == key(Schedule())
    assert key(Measures(clients=["received"])) == key(Measures())


def test_arrays_sets_and_numpy_numbers_have_stable_names():
    assert canonical(np.arange(3)) == canonical(np.arange(3))
    assert canonical(np.arange(3)) != canonical(np.arange(3.0))
    assert canonical({3, 1}) == [1, 3]
    assert canonical(np.float64(0.5)) == 0.5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, "define it with def"),
        (partial(at_round, 3), "binds positional"),
        (object(), "no stable name"),
        (Counter().update, "no plain function"),
        (np.vectorize(outside), "define one with def"),
    ],
)
def test_what_has_no_stable_name_is_refused(value, message):
    with pytest.raises(NoStableNameError, match=message):
        key(value)
