"""Notebook sources: which exist, what they declare, and the rules that every one of them keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cflib import notebooks
from cflib.notebooks import check, faults, find, folder, parameters, presets, settings
from cflib.parameters import declarations, from_file, from_text, split_values

REAL = Path(__file__).parent.parent / "notebooks"
DECLARED = 'rounds: int = 3  # rounds of training\npreset: str = "quick"  # set by the runner'


def code_cell(name, source):
    return {"cell_type": "code", "id": name, "metadata": {}, "source": source, "outputs": [], "execution_count": None}


def make(place, slug, *cells, declared=DECLARED, smoke="{}"):
    """Write a small notebook source with a preset smoke, and return its path."""
    nodes = [code_cell("parameters", declared), *(code_cell(f"cell-{i}", source) for i, source in enumerate(cells))]
    nodes[0]["metadata"] = {"tags": ["parameters"]}
    title = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# Try"}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {
        "cells": [title, *nodes],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = place / f"{slug}.ipynb"
    path.write_text(json.dumps(notebook))
    (place / "params" / slug).mkdir(parents=True)
    (place / "params" / slug / "smoke.yml").write_text(smoke)
    return path


def edit(path, change):
    """Change a notebook's JSON in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


# The real notebooks


@pytest.mark.parametrize("path", sorted(REAL.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_keeps_the_rules(path):
    assert check(path) == []


def test_every_folder_of_presets_belongs_to_a_notebook():
    assert {place.name for place in (REAL / "params").glob("*")} <= {path.stem for path in REAL.glob("*.ipynb")}


# What exists


@pytest.mark.parametrize("name", ["01", "louvain_cfl", "01_louvain_cfl", "notebooks/01_louvain_cfl.ipynb"])
def test_a_notebook_goes_by_number_slug_or_full_name(tmp_path, name):
    wanted = make(tmp_path, "01_louvain_cfl")
    make(tmp_path, "02_agreement")
    assert find(tmp_path, [name]) == [wanted]


def test_without_names_all_numbered_notebooks_are_meant(tmp_path):
    second, first = make(tmp_path, "02_b"), make(tmp_path, "01_a")
    mine = make(tmp_path, "my_study")
    assert find(tmp_path) == [first, second]
    assert find(tmp_path, ["my_study", "01", "a"]) == [mine, first]


def test_an_unknown_or_ambiguous_notebook_is_refused_with_a_list(tmp_path):
    make(tmp_path, "01_a")
    make(tmp_path, "01_b")
    with pytest.raises(ValueError, match=r"no notebook '03'.*01_a, 01_b"):
        find(tmp_path, ["03"])
    with pytest.raises(ValueError, match="several notebooks '01'"):
        find(tmp_path, ["01"])


def test_the_folder_can_be_named_in_the_environment(tmp_path, monkeypatch):
    assert folder() == REAL
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(tmp_path))
    assert folder() == tmp_path
    monkeypatch.setenv("CFLIB_NOTEBOOKS", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="CFLIB_NOTEBOOKS"):
        folder()


def test_quick_exists_without_a_file_and_the_others_only_with_one(tmp_path):
    path = make(tmp_path, "01_a", smoke="rounds: 1")
    assert presets(path) == ["smoke", "quick"]
    assert settings(path, "smoke") == {"rounds": 1, "preset": "smoke"}
    assert settings(path, "quick") == {"preset": "quick"}
    with pytest.raises(ValueError, match="01_a has no preset 'paper'; it has: smoke, quick"):
        settings(path, "paper")


def test_an_empty_preset_file_changes_nothing_and_may_name_its_own_preset(tmp_path):
    assert settings(make(tmp_path, "01_a", smoke="# nothing\n"), "smoke") == {"preset": "smoke"}
    assert settings(make(tmp_path, "02_b", smoke="preset: smoke"), "smoke") == {"preset": "smoke"}


def test_a_preset_with_a_fault_cannot_be_used(tmp_path):
    with pytest.raises(ValueError, match=r"smoke.yml: no parameter 'roundz'; 01_a has: rounds, preset"):
        settings(make(tmp_path, "01_a", smoke="roundz: 1"), "smoke")


# Declarations and values


def test_declarations_are_those_that_papermill_shows(tmp_path):
    import papermill

    text = "names: list[str] = ['a', 'b']  # names\nshare: float = 0.5  # a share\nfast: bool = True  # haste"
    path = make(tmp_path, "01_a", declared=f"{text}\n\n# a remark\n{DECLARED}")
    shown = papermill.inspect_notebook(str(path))
    mine = parameters(path)
    assert {name: (one.type, one.help) for name, one in mine.items()} == {
        name: (one["inferred_type_name"], one["help"]) for name, one in shown.items()
    }
    assert mine["names"].default == ["a", "b"]
    assert str(mine["share"]) == "share: float = 0.5  # a share"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("rounds = 3  # untyped", "write name: type = literal  # help"),
        ("rounds: int = 3", "write name: type = literal  # help"),
        ("rounds: int = 3  #", "write name: type = literal  # help"),
        ("import numpy", "write name: type = literal  # help"),
        ("rounds: int = 2 * 3  # derived", "nothing derived"),
        ("rounds: int = 0.5  # half a round", "0.5 is not of type int"),
        ("rounds: int = True  # a bool is no number", "True is not of type int"),
        ("pair: tuple[int, int] = (1, 2)  # a pair", "not one of int, float, str, bool, list"),
        ("rows: list[dict] = []  # rows", "type dict is not one of"),
        ("rate: float = 0.1  # eta = 0.1", "second '='"),
    ],
)
def test_a_line_that_declares_no_parameter_is_named(line, complaint):
    declared, complaints = declarations(line)
    assert declared == {}
    assert len(complaints) == 1
    assert line in complaints[0]
    assert complaint in complaints[0]


def test_a_parameter_declared_twice_is_named():
    assert declarations("a: int = 1  # one\na: int = 2  # two")[1] == ["parameter a is declared twice"]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", "int", 3),
        ("3", "float", 3.0),
        ("1e-3", "float", 0.001),
        ("true", "bool", True),
        ("False", "bool", False),
        ("mnist", "str", "mnist"),
        ("'3'", "str", "3"),
        ("'", "str", "'"),
        ("a=b", "str", "a=b"),
        ("1,2", "list[int]", [1, 2]),
        ("[1, 2]", "list[int]", [1, 2]),
        ("[]", "list[int]", []),
        ("['a', \"b\"]", "list[str]", ["a", "b"]),
        ("[1],[2,3]", "list[list[int]]", [[1], [2, 3]]),
        ("[[1],[2,3]]", "list[list[int]]", [[1], [2, 3]]),
    ],
)
def test_a_text_becomes_a_value_of_the_declared_type(text, kind, value):
    read = from_text(text, kind)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("0.5", "int"), ("many", "float"), ("1", "bool"), ("1,x", "list[int]"), ("", "int"), ("[1", "list[int]")],
)
def test_a_text_of_another_type_is_refused(text, kind):
    with pytest.raises(ValueError, match="is not of type"):
        from_text(text, kind)


@given(
    st.one_of(
        st.tuples(st.just("int"), st.integers()),
        st.tuples(st.just("float"), st.floats(allow_nan=False)),
        st.tuples(st.just("bool"), st.booleans()),
        st.tuples(st.just("list[int]"), st.lists(st.integers())),
        st.tuples(st.just("list[list[int]]"), st.lists(st.lists(st.integers(), min_size=1), min_size=1)),
    )
)
def test_a_printed_value_is_read_back_and_survives_a_file(typed):
    kind, value = typed
    assert from_text(str(value), kind) == value
    assert from_file(yaml.safe_load(yaml.safe_dump(value)), kind) == value


@pytest.mark.parametrize(
    ("value", "kind", "complaint"),
    [
        (0.5, "int", "0.5 is not of type int"),
        (True, "int", "True is not of type int"),
        (3, "str", "3 is not of type str"),
        ("1e-3", "float", "write 1.0e-3"),
        ([1, "a"], "list[int]", "'a' is not of type int"),
        (1, "list[int]", "1 is not of type list"),
        (None, "int", "None is not of type int"),
    ],
)
def test_a_file_s_value_of_another_type_is_refused(value, kind, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_file(value, kind)


def test_values_split_at_commas_outside_brackets():
    assert split_values("1, 2") == ["1", "2"]
    assert split_values("[1,2],[3]") == ["[1,2]", "[3]"]


# The rules


def test_a_good_notebook_has_no_complaints(tmp_path):
    cells = [
        "%matplotlib inline\nimport warnings\nwarnings.filterwarnings('ignore', category=UserWarning)",
        "def double(x):\n    '''Twice.'''\n    y = x\n    return 2 * y\n\nf'{rounds}/s and {preset}/a/b'",
        "await asyncio.sleep(0)",
    ]
    path = make(tmp_path, "01_good", *cells, smoke="rounds: 1")
    see = "See https://example.org/home/page and /train, 3/4."
    edit(path, lambda notebook: notebook["cells"][0].update(source=see))
    assert check(path) == []
    assert faults(path) == []


def move_parameters(notebook):
    notebook["cells"].insert(1, {**notebook["cells"][1], "id": "early", "metadata": {}})


def drop_ids(notebook):
    notebook["nbformat_minor"] = 4
    for cell in notebook["cells"]:
        del cell["id"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (move_parameters, "the first code cell, and it alone, must be tagged 'parameters'"),
        (lambda n: n["cells"].pop(1), "the first code cell"),
        (lambda n: n["cells"].append({**n["cells"][1], "id": "again"}), "and it alone"),
        (lambda n: n["cells"][1].update(source="rounds: int = 3  # rounds"), 'must declare preset: str = "quick"'),
        (lambda n: n["cells"][1].update(source='preset: str = "long"  # which'), 'must declare preset: str = "quick"'),
        (
            lambda n: n["cells"][1].update(source=f"{DECLARED}\nmark: int = 1  # type: of mark"),
            "papermill shows mark as ('int', 'mark')",
        ),
        (
            lambda n: n["cells"][1].update(source=f'{DECLARED}\nmark: str = "a # b"  # a mark'),
            "the default must be a literal",
        ),
        (drop_ids, "notebook format 4.5"),
        (lambda n: n["cells"][0].pop("metadata"), "breaks the notebook format"),
        (lambda n: n["metadata"]["kernelspec"].update(name="ir"), "must name the kernel python3"),
        (lambda n: n["metadata"].clear(), "papermill cannot inspect it"),
        (lambda n: n["cells"][2].update(execution_count=1), "cell 3: outputs or an execution count"),
        (
            lambda n: n["cells"][2].update(outputs=[{"output_type": "stream", "name": "stdout", "text": "x"}]),
            "cell 3: outputs",
        ),
        (lambda n: n["cells"][2]["metadata"].update(tags=["injected-parameters"]), "cell 3: parameters injected"),
        (lambda n: n["cells"][0].update(source="Data are in /home/me/data."), "cell 1: an absolute path"),
    ],
)
def test_each_broken_rule_of_form_is_named(tmp_path, change, complaint):
    path = edit(make(tmp_path, "01_bad", "rounds"), change)
    assert any(complaint in one for one in check(path)), check(path)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("\n".join(f"x = {i}" for i in range(26)), "26 lines; at most 25"),
        ("def long(x):\n    a = x\n    b = a\n    c = b\n    return c", "def long has 4 lines"),
        ("class A:\n    async def long(self):\n        a = 1\n        b = 1\n        c = 1\n        d = 1", "def long"),
        ("!pip install flwr", "installs packages"),
        ("%pip install flwr", "installs packages"),
        ("!{sys.executable} -m pip install flwr", "installs packages"),
        ("import warnings\nwarnings.filterwarnings('ignore')", "blanket warning filter"),
        ('from warnings import simplefilter\nsimplefilter(action="ignore")', "blanket warning filter"),
        ("open('/data/mnist/train.npy')", "an absolute path"),
        ("open('~/mnist.npy')", "an absolute path"),
        (r"open('C:\\data')", "an absolute path"),
        ("%cd /tmp/here", "an absolute path"),
        ("if True", "does not parse"),
    ],
)
def test_each_broken_rule_of_code_is_named(tmp_path, source, complaint):
    path = make(tmp_path, "01_bad", source)
    assert any(one.startswith("cell 3: ") and complaint in one for one in check(path)), check(path)
    assert faults(path) == []


@pytest.mark.parametrize(
    ("smoke", "complaint"),
    [
        ("roundz: 1", "smoke.yml: no parameter 'roundz'; 01_bad has: rounds, preset"),
        ("rounds: 0.5", "smoke.yml: rounds: 0.5 is not of type int"),
        ("[1, 2]", "must hold name: value pairs"),
        ("rounds: [", "is not YAML"),
        ("preset: quick", "preset must be 'smoke'"),
    ],
)
def test_each_fault_of_a_preset_file_is_named(tmp_path, smoke, complaint):
    path = make(tmp_path, "01_bad", smoke=smoke)
    assert [one for one in faults(path) if complaint in one]
    assert [one for one in check(path) if complaint in one]


def test_a_missing_smoke_preset_and_a_misspelt_one_are_named(tmp_path):
    path = make(tmp_path, "01_bad")
    presets_of = tmp_path / "params" / "01_bad"
    (presets_of / "smoke.yml").rename(presets_of / "smok.yml")
    assert any("no preset smoke" in one for one in check(path))
    assert any("smok.yml: a preset file is one of smoke.yml, quick.yml" in one for one in faults(path))


def test_a_name_without_a_number_is_named(tmp_path):
    assert any("NN_slug" in one for one in check(make(tmp_path, "Untitled")))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": 3}'])
def test_a_file_that_is_no_notebook_is_named(tmp_path, text):
    path = make(tmp_path, "01_bad")
    path.write_text(text)
    assert len(check(path)) == 1
    assert "01_bad.ipynb is no notebook" in check(path)[0]
    with pytest.raises(ValueError, match="is no notebook"):
        parameters(path)


def test_parameters_of_a_notebook_with_faults_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"01_bad.ipynb: parameter line"):
        parameters(make(tmp_path, "01_bad", declared="rounds = 3"))


def test_the_limits_are_those_of_the_house_style():
    assert (notebooks.LONGEST_CELL, notebooks.LONGEST_BODY) == (25, 3)
