"""Content addresses: equal inputs give equal keys in any process, changed inputs do not, lambdas are refused."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest

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
    assert canonical(Plain(3, "y")) == canonical(Plain(3, settings={})) == {"is": "Plain", "size": 3}
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
        (len, "no plain function"),
        (Counter().update, "no plain function"),
        (len, "define one with def"),
    ],
)
def test_what_has_no_stable_name_is_refused(value, message):
    with pytest.raises(NoStableNameError, match=message):
        key(value)
