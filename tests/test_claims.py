import itertools
import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import beta, spearmanr

from cflib import claims, rules

REFERENCE = Path(__file__).parent.parent / "data" / "reference"
LETTERS = {"L": "000", "A": "001", "D": "002", "F": "003", "O": "004"}
VALUES = st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3))


# ---------------------------------------------------------------------------------------------------- the ledger


def test_the_ledger_holds_exactly_the_committed_claim_ids():
    ids = (REFERENCE / "claim_ids.txt").read_text().split()
    assert sorted(claims.load()) == ids
    assert len(ids) == 115
    assert [len([i for i in ids if i[0] == letter]) for letter in "LADFO"] == [33, 12, 20, 28, 22]


def test_no_claim_is_written_twice():
    headings = re.findall(r"^([A-Z]\d\d):", (REFERENCE / "claims.yml").read_text(), flags=re.MULTILINE)
    assert len(headings) == len(set(headings)) == 115


def test_every_claim_belongs_to_the_paper_and_notebook_of_its_letter():
    for claim in claims.load().values():
        assert claim.paper == LETTERS[claim.id[0]]
        assert claim.notebook == claims.NOTEBOOKS[int(claim.paper)]


def test_every_claim_has_a_rule_or_a_reason():
    for claim in claims.load().values():
        assert bool(claim.rule and claim.conditions) != bool(claim.reason), claim.id


def test_only_costs_on_other_hardware_are_beyond_any_run():
    assert {claim.id for claim in claims.load().values() if claim.reason} == {"F13", "L02"}


def evidence_for(condition, n):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, n))
    kind = condition["test"]
    if kind in ("ordering", "equality", "spread"):
        return first if "second" in condition else (first, second)
    return {"number": first, "trend": rng.normal(size=(n, 4)), "event": first > 0}[kind]


@pytest.mark.parametrize("claim", claims.load().values(), ids=lambda claim: claim.id)
def test_every_condition_decides_from_evidence_of_its_kind(claim):
    evidence = {label: evidence_for(condition, 20) for label, condition in claim.conditions.items()}
    control = [1.0] if claim.control else None
    verdict = claims.judge(claim.id, evidence, preset="paper", control=control)
    assert None not in verdict.conditions.values()
    assert verdict.outcome in (claims.OUTCOMES[:3] if claim.conditions else claims.OUTCOMES[3:])


def test_every_number_is_compared_with_what_the_paper_reports():
    for claim in claims.load().values():
        for label, condition in claim.conditions.items():
            if condition["test"] == "number":
                reported = claim.reported[label] if isinstance(claim.reported, dict) else claim.reported
                assert isinstance(reported, int | float), (claim.id, label)


def test_importing_the_package_and_the_claims_imports_no_heavy_library():
    code = (
        "import sys, cflib, cflib.claims; cflib.claims.load();"
        "print([m for m in ('pandas', 'sklearn', 'scipy', 'tensorflow', 'flwr', 'papermill') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


SOUND = {
    "paper": "000",
    "place": "V",
    "statement": "IFCA is last.",
    "kind": "ordering",
    "reported": None,
    "rule": "Accuracy.",
    "conditions": {"below AVG": {"test": "ordering", "direction": "less"}},
    "notebook": "01_louvain_cfl",
    "preset": "long",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paper": "005"}, "claim L13: paper is '005'"),
        ({"kind": "guess"}, "claim L13: kind is 'guess'"),
        ({"preset": "smoke"}, "claim L13: preset is 'smoke'"),
        ({"arm": "both"}, "claim L13: arm is 'both'"),
        ({"notebook": "09"}, "claim L13: notebook is '09'"),
        ({"statement": ""}, "claim L13: needs a statement"),
        ({"rule": ""}, "claim L13: needs .* a rule"),
        ({"conditions": {}}, "claim L13: needs .* a rule with conditions"),
        ({"reason": "too long"}, "claim L13: needs .* or else a reason"),
        ({"colour": "red"}, "claim L13: .*colour"),
        ({"control": {"setting": "AVG"}}, "claim L13: control has"),
        ({"conditions": {"x": {"direction": "less"}}}, "claim L13, x: test is None"),
        ({"conditions": {"x": {"test": "vote"}}}, "claim L13, x: test is 'vote'"),
        ({"conditions": {"x": {"test": "ordering"}}}, "claim L13, x: .*direction"),
        ({"conditions": {"x": {"test": "ordering", "direction": "up"}}}, "claim L13, x: direction is 'up'"),
        ({"conditions": {"x": {"test": "equality", "margin": "wide"}}}, "claim L13, x: "),
        ({"conditions": {"x": {"test": "equality"}}}, "claim L13, x: .*margin"),
        ({"conditions": {"x": {"test": "event", "tolerance": 1}}}, "claim L13, x: .*tolerance"),
        ({"conditions": {"x": {"test": "number", "tolerance": 1}}}, "claim L13, x: "),
    ],
)
def test_a_ledger_error_names_the_claim(tmp_path, change, message):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump({"L13": SOUND}))
    assert list(claims.load(path)) == ["L13"]
    broken = tmp_path / "broken.yml"
    broken.write_text(yaml.safe_dump({"L13": SOUND | change}))
    with pytest.raises(ValueError, match=message):
        claims.load(broken)


def test_a_missing_field_names_the_claim(tmp_path):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump({"L13": {k: v for k, v in SOUND.items() if k != "place"}}))
    with pytest.raises(ValueError, match=r"claim L13: .*place"):
        claims.load(path)


def test_defects_are_numbered_without_gaps_and_touch_known_claims():
    defects = yaml.safe_load((REFERENCE / "defects.yml").read_text())
    expected = {"L": 15, "A": 10, "D": 14, "F": 12, "O": 26}
    assert list(defects) == [f"{letter}-{i + 1}" for letter, count in expected.items() for i in range(count)]
    for name, defect in defects.items():
        assert set(defect) == {"paper", "found", "reading", "claims"}, name
        assert defect["paper"] == LETTERS[name[0]]
        assert defect["found"].endswith(".")
        assert defect["reading"].endswith(".")
        assert set(defect["claims"]) <= set(claims.load()), name


def test_table_one_has_every_cell_and_the_known_means():
    cells = pd.read_csv(REFERENCE / "ocfl_table1.csv")
    keys = ["dataset", "clients", "overlap", "balance", "algorithm"]
    assert len(cells) == 3 * 2 * 2 * 2 * 6 == len(cells[keys].drop_duplicates())
    means = cells[cells.algorithm == "HDB"].groupby("dataset").ari.mean()
    assert means.to_dict() == pytest.approx({"cifar10": 0.756, "fashion_mnist": 0.968, "mnist": 0.953}, abs=1e-3)
    dashes = cells[cells.printed == "dash"]
    assert not dashes[["ari", "ami", "homogeneity"]].to_numpy().any()


# ----------------------------------------------------------------------------------------------------- the rules


def test_a_number_holds_up_to_the_edge_of_its_tolerance():
    assert rules.judge_number([1.0], 0.95, 0.05).held is True
    assert rules.judge_number([1.001], 0.95, 0.05).held is False
    assert rules.judge_number([0.7, 0.8], 0.75, 0).held is True
    assert rules.judge_number(1_663_370, 1_663_370, 0) == rules.Finding(True, 1_663_370.0, None, 1)


def test_a_number_shows_the_mean_with_its_interval():
    found = rules.judge_number([1, 2, 3], 5, 1)
    assert (found.held, found.value, found.n, found.note) == (False, 2.0, 3, "expected 5 ± 1")
    assert found.interval == pytest.approx((2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), abs=1e-4)


def test_a_number_that_needs_more_runs_is_undecided():
    assert rules.judge_number([1.0, 1.0], 1, 0, seeds=3) == rules.Finding(None, 1.0, (1.0, 1.0), 2, "n = 2, needs 3")


def test_an_ordering_holds_when_the_paired_interval_excludes_zero():
    # differences 1, 2, 3: mean 2, half-width 4.303 / sqrt(3) = 2.484, so the interval contains 0
    assert rules.judge_ordering([1, 2, 3], [0, 0, 0], "greater").note == "the interval contains 0"
    # differences 2, 3, 4: mean 3, interval (0.516, 5.484)
    found = rules.judge_ordering([2, 3, 4], [0, 0, 0], "greater")
    assert found.held is True
    assert found.interval == pytest.approx((0.516, 5.484), abs=1e-3)
    assert rules.judge_ordering([2, 3, 4], [0, 0, 0], "less").note == "the other way round"
    assert rules.judge_ordering([0, 0, 0], [2, 3, 4], "less").held is True


def test_an_ordering_by_a_margin_needs_the_interval_beyond_it():
    first = [2, 3, 4]  # interval (0.516, 5.484)
    assert rules.judge_ordering(first, 0, "greater", by=0.5).held is True
    assert rules.judge_ordering(first, 0, "greater", by=0.6).note == "the interval contains 0.6"
    assert rules.judge_ordering(-np.asarray(first), 0, "less", by=0.6).note == "the interval contains -0.6"
    assert rules.judge_ordering([-x for x in first], 0, "less", by=0.5).held is True
    assert rules.judge_ordering([-0.01, 0.0, 0.01], 0, "greater", by=-0.03).held is True


@pytest.mark.parametrize("number", [0.5, 1.9, 9.0])
def test_an_ordering_against_one_number_decides_like_one_against_its_copies_and_shows_the_value_itself(number):
    alone = rules.judge_ordering([1.5, 2, 2.5], number, "greater")
    copies = rules.judge_ordering([1.5, 2, 2.5], [number] * 3, "greater")
    assert (alone.held, alone.against) == (copies.held, copies.against)
    assert alone.value == pytest.approx(2)
    assert alone.interval == pytest.approx(tuple(end + number for end in copies.interval))
    assert (f"{number:g}" in alone.note) == (alone.held is False)


def test_an_ordering_of_fewer_than_three_seeds_is_undecided_but_shows_its_values():
    found = rules.judge_ordering([0.9, 0.8], [0.1, 0.1], "greater")
    assert (found.held, found.n, found.note) == (None, 2, "n = 2, needs 3")
    assert found.value == pytest.approx(0.75)
    assert rules.judge_ordering([0.9], [0.1], "greater").interval is None


def test_equal_values_are_not_in_order_but_are_equal():
    assert rules.judge_ordering([0.96] * 3, [0.96] * 3, "greater").held is False
    assert rules.judge_equality([0.96] * 3, [0.96] * 3, 0.01).held is True
    assert rules.judge_ordering([0.97] * 3, [0.96] * 3, "greater").held is True


def test_equality_asks_the_interval_to_stay_within_the_margin():
    # differences -0.01, 0, 0.01: half-width 4.303 * 0.01 / sqrt(3) = 0.02484
    first, second = [0.49, 0.5, 0.51], [0.5, 0.5, 0.5]
    assert rules.judge_equality(first, second, 0.025).held is True
    assert rules.judge_equality(first, second, 0.024).note == "it leaves ± 0.024"
    assert rules.judge_equality([0.1, 0.9, 0.5], second, 0.05).held is False
    assert rules.judge_equality(second, [0.6, 0.61, 0.62], 0.05).held is False
    assert rules.judge_equality(first[:2], second[:2], 1).held is None


@given(arrays(float, (4, 2), elements=VALUES))
def test_exchanging_both_sides_and_the_direction_changes_no_ordering(pairs):
    forth = rules.judge_ordering(pairs[:, 0], pairs[:, 1], "greater")
    back = rules.judge_ordering(pairs[:, 1], pairs[:, 0], "less")
    assert (forth.held, forth.note) == (back.held, back.note)
    assert rules.judge_ordering(pairs[:, 0], pairs[:, 1], "less").held is not True or forth.held is False


@given(arrays(float, (5, 4), elements=VALUES))
def test_a_trend_is_the_mean_of_spearmans_correlations(rows):
    expected = [0.0 if np.ptp(row) == 0 else spearmanr(row, np.arange(4)).statistic for row in rows]
    found = rules.judge_trend(rows, "greater")
    assert found.value == pytest.approx(np.mean(expected), abs=1e-9)
    assert rules.judge_trend(-rows, "less").held is found.held


def test_a_trend_needs_its_interval_above_zero():
    assert rules.judge_trend([[1, 2, 3]] * 3, "greater") == rules.Finding(True, 1.0, (1.0, 1.0), 3)
    assert rules.judge_trend([[1, 2, 3]] * 3, "less").note == "the other way round"
    # correlations 1, 1, 0.5: mean 0.8333, half-width 4.303 * 0.2887 / sqrt(3) = 0.717
    assert rules.judge_trend([[1, 2, 4], [0, 5, 9], [1, 3, 2]], "greater").held is True
    assert rules.judge_trend([[1, 2, 4], [0, 5, 9], [3, 1, 2]], "greater").note == "the interval contains 0"
    assert rules.judge_trend([[7, 7, 7]] * 3, "greater").held is False
    assert rules.judge_trend([[1, 2, 3]] * 2, "greater").held is None


def test_an_event_holds_in_the_asked_share_of_runs():
    assert rules.judge_event([True, True, True, False], share=0.75).held is True
    assert rules.judge_event([True, True, False], share=0.75).note == "2 of 3 runs, expected 75%"
    assert rules.judge_event([True, True], share=0.75).held is None
    assert rules.judge_event(np.True_, seeds=1).held is True


def test_one_counterexample_refutes_a_claim_about_all_runs():
    assert rules.judge_event([False]).held is False
    assert rules.judge_event([True]).held is None
    assert rules.judge_event([False], share=0.75).held is None


def test_the_interval_of_an_event_is_that_of_clopper_and_pearson():
    found = rules.judge_event([True] * 7 + [False] * 3, share=0.5)
    assert found.interval == pytest.approx((beta.ppf(0.025, 7, 4), beta.ppf(0.975, 8, 3)))


def brute_force_p(first, second, sign):
    """Exchange the arms of every subset of seeds, in deviations from the arm's own median."""
    one, two = (np.abs(x - np.median(x, axis=0)).reshape(len(x), -1).mean(axis=1) for x in (first, second))
    exchanged = np.array(list(itertools.product([False, True], repeat=len(one))))
    gaps = sign * (np.where(exchanged, two, one).mean(axis=1) - np.where(exchanged, one, two).mean(axis=1))
    return np.mean(gaps >= gaps[0] - 1e-12)


@settings(max_examples=30)
@given(arrays(float, (2, 7, 2), elements=VALUES), st.sampled_from(["less", "greater"]))
def test_the_spread_test_equals_brute_force(values, direction):
    expected = brute_force_p(values[0], values[1], rules.SIGNS[direction])
    found = rules.judge_spread(values[0], values[1], direction)
    assert f"p = {expected:.3g}" in found.note
    if expected <= 0.05:
        assert found.held is True
    elif brute_force_p(values[0], values[1], -rules.SIGNS[direction]) <= 0.05:
        assert found.held is False
    else:
        assert found.held is None


def test_with_many_seeds_the_spread_test_draws_exchanges_at_random_and_repeatably():
    rng = np.random.default_rng(3)
    first, second = 0.8 * rng.normal(size=17), rng.normal(size=17)
    p = float(rules.judge_spread(first, second, "less").note.split("p = ")[1].split(",")[0])
    assert p == pytest.approx(brute_force_p(first, second, -1), abs=0.01)
    assert rules.judge_spread(first, second, "less") == rules.judge_spread(first, second, "less")
    wide = np.arange(25.0)
    assert "p = 1.53e-05" in rules.judge_spread(wide / 1000, wide, "less").note  # the observed one always counts


def test_few_seeds_can_show_a_spread_but_not_its_absence():
    wide = np.array([-9.0, 8, -7, 6, -5, 4, -3, 10])
    assert rules.judge_spread(wide / 100, wide, "less").held is True
    assert rules.judge_spread(wide, wide / 100, "less").held is False
    same = rules.judge_spread(wide, wide, "less")
    assert same.held is None
    assert same.note.endswith("p = 1, n = 8, needs 20")
    assert rules.judge_spread(np.tile(wide, 3), np.tile(wide, 3), "less").held is False
    assert rules.judge_spread(wide[:4] / 100, wide[:4], "less").held is None


def test_the_spread_test_ignores_where_the_values_lie():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 10, 3))
    moved = rules.judge_spread(first + 100, second - [5, 6, 7], "less")
    assert moved.value == pytest.approx(rules.judge_spread(first, second, "less").value)


def test_the_spread_test_keeps_its_level_on_skewed_scores():
    rng = np.random.default_rng(1)
    runs = [rules.judge_spread(*rng.exponential(size=(2, 10)), "less").held for _ in range(300)]
    assert np.mean([held is True for held in runs]) < 0.09


def test_twenty_seeds_find_a_halved_spread_four_times_in_five():
    rng = np.random.default_rng(2)
    held = [rules.judge_spread(rng.normal(size=20) / 2, rng.normal(size=20), "less").held for _ in range(60)]
    assert np.mean(held) > 0.65


@pytest.mark.parametrize(
    ("outcome", "conditions"),
    [
        ("reproduced", [True, True]),
        ("partly", [True, False]),
        ("partly", [True, None]),
        ("partly", [True, False, None]),
        ("not reproduced", [False, False]),
        ("not reproduced", [False, None]),
        ("not attempted", [None, None]),
        ("not attempted", []),
    ],
)
def test_conditions_combine_to_one_outcome(outcome, conditions):
    assert claims.combine(dict(enumerate(conditions))) == outcome


NAN, PAIR = [1.0, float("nan"), 2.0], [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rules.judge_number(NAN, 1, 1),
        lambda: rules.judge_number([], 1, 1),
        lambda: rules.judge_number([[1.0]], 1, 1),
        lambda: rules.judge_ordering(NAN, PAIR, "less"),
        lambda: rules.judge_ordering(PAIR, NAN, "less"),
        lambda: rules.judge_ordering(PAIR, PAIR[:2], "less"),
        lambda: rules.judge_ordering(PAIR, PAIR, "lower"),
        lambda: rules.judge_equality(PAIR, NAN, 1),
        lambda: rules.judge_equality(PAIR, PAIR[:2], 1),
        lambda: rules.judge_spread(NAN, PAIR, "less"),
        lambda: rules.judge_spread(PAIR, PAIR[:2], "less"),
        lambda: rules.judge_spread(PAIR, PAIR, "smaller"),
        lambda: rules.judge_trend([NAN] * 3, "less"),
        lambda: rules.judge_trend(PAIR, "less"),
        lambda: rules.judge_trend([[1.0, 2.0]] * 3, "less"),
        lambda: rules.judge_event([1.0, 0.0]),
        lambda: rules.judge_event([]),
    ],
)
def test_unusable_values_are_refused(wrong):
    with pytest.raises(ValueError, match=r"are|is|cannot|has"):
        wrong()


def test_final_is_the_mean_over_the_last_eighth_of_the_rounds():
    assert claims.final(np.arange(40)) == pytest.approx(37)
    assert claims.final([[1, 2, 3], [4, 5, 6]]).tolist() == [3, 6]


# -------------------------------------------------------------------------------------------------- the verdicts

HIGH, LOW = [0.9, 0.91, 0.92], [0.5, 0.52, 0.53]
LEARNED = [0.95]


def below(*names):
    return {f"below {name}": (LOW, HIGH) for name in names}


def test_a_claim_of_one_condition_takes_bare_evidence():
    verdict = claims.judge("A07", (HIGH, LOW), preset="quick", control=LEARNED)
    assert (verdict.outcome, verdict.arm, verdict.preset) == ("reproduced", "corrected", "quick")
    assert verdict.evidence["silhouette"] == rules.judge_ordering(HIGH, LOW, "greater")
    assert verdict.note == ""


def test_a_claim_that_holds_in_some_conditions_holds_partly():
    evidence = below("AVG", "1NN", "WNN") | {"below Late": (HIGH, LOW)}
    verdict = claims.judge("L13", evidence, preset="long", control=LEARNED)
    assert verdict.outcome == "partly"
    assert verdict.conditions == {"below AVG": True, "below 1NN": True, "below WNN": True, "below Late": False}


def test_conditions_without_evidence_are_named():
    verdict = claims.judge("L13", below("AVG", "1NN"), preset="long", control=LEARNED, note="two seeds lost")
    assert verdict.outcome == "partly"
    assert verdict.note == "two seeds lost; without evidence: below WNN, below Late"


def test_too_few_seeds_leave_a_claim_not_attempted_and_say_how_many():
    verdict = claims.judge("A07", (HIGH[:2], LOW[:2]), preset="quick", control=LEARNED)
    assert (verdict.outcome, verdict.note) == ("not attempted", "silhouette: n = 2, needs 3")
    assert verdict.evidence["silhouette"].value == pytest.approx(0.395)


def test_the_smoke_preset_never_decides():
    for preset in ("smoke", "quick"):
        verdict = claims.judge("A01", 1_663_370, preset=preset)
        assert (verdict.outcome == "not attempted") == (preset == "smoke")
    assert claims.judge("A01", 1_663_370, preset="smoke").note == "smoke: the smallest preset that decides is quick"


def test_a_preset_below_the_claims_own_shows_values_without_deciding():
    verdict = claims.judge("L31", (HIGH, LOW), preset="quick", control=LEARNED)
    assert verdict.outcome == "not attempted"
    assert verdict.conditions == {"own data": True}
    assert "the smallest preset that decides is long" in verdict.note


def test_a_control_that_has_not_learned_decides_nothing():
    verdict = claims.judge("L31", (HIGH, LOW), preset="long", control=[0.1, 0.12])
    assert verdict.outcome == "not attempted"
    assert "not learned: AVG at m_k = 0.1 with all clients has 0.110, needs 0.3" in verdict.note
    with pytest.raises(ValueError, match="claim L31: pass control"):
        claims.judge("L31", (HIGH, LOW), preset="long")


def test_a_claim_beyond_any_run_gives_its_reason():
    verdict = claims.judge("L02", preset="paper")
    assert verdict.outcome == "not attempted"
    assert verdict.note == claims.load()["L02"].reason


def test_the_ledger_names_the_arm_unless_the_caller_does():
    evidence = {"IID": [True] * 3}
    assert claims.judge("D01", evidence, preset="paper").arm == "as_published"
    assert claims.judge("D01", evidence, preset="paper", arm="corrected").arm == "corrected"


@pytest.mark.parametrize(
    ("claim", "evidence", "options", "message"),
    [
        ("L99", None, {}, "no claim 'L99'"),
        ("L13", (LOW, HIGH), {}, r"claim L13 has no condition .*below AVG"),
        ("L13", {"below all": (LOW, HIGH)}, {}, r"claim L13 has no condition \['below all'\]"),
        ("L13", {"below AVG": LOW}, {}, "claim L13, below AVG: .*second"),
        ("L13", {"below AVG": (NAN, PAIR)}, {}, "claim L13, below AVG: values are"),
        ("A03", (HIGH, LOW), {}, "claim A03, close in round 1: .*second"),
        ("L13", below("AVG"), {"preset": "huge"}, "claim L13: preset is 'huge'"),
        ("L13", below("AVG"), {"arm": "mine"}, "claim L13: arm is 'mine'"),
        ("L13", below("AVG"), {"control": NAN}, "values are"),
    ],
)
def test_a_wrong_call_names_the_claim(claim, evidence, options, message):
    with pytest.raises(ValueError, match=message):
        claims.judge(claim, evidence, **{"preset": "long", "control": LEARNED} | options)


# --------------------------------------------------------------------------------------------------- the results


def a07(preset, held=True, arm="", n=3):
    pair = (HIGH[:n], LOW[:n]) if held else (LOW[:n], HIGH[:n])
    return claims.judge("A07", pair, preset=preset, arm=arm, control=LEARNED)


def store(folder, *verdicts):
    return claims.save("02_agreement_matrix", verdicts[0].preset, verdicts, {"commit": "abc"}, folder)


def test_a_saved_file_has_the_published_schema(tmp_path):
    path = store(tmp_path / "new", a07("quick"), claims.judge("A01", 1_663_370, preset="quick"))
    assert path == tmp_path / "new" / "02_agreement_matrix.quick.json"
    content = json.loads(path.read_text())
    assert list(content) == ["slug", "preset", "verdicts", "provenance"]
    assert content["provenance"] == {"commit": "abc"}
    found = content["verdicts"][1]["evidence"]["parameters"]
    assert found == {"held": True, "value": 1_663_370.0, "interval": None, "n": 1, "note": "", "against": None}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_verdict_survives_saving_and_collecting(tmp_path):
    verdict = a07("quick")
    store(tmp_path, verdict)
    assert claims.collect(tmp_path)["A07", "corrected"] == verdict


def test_the_default_folder_of_results_can_be_set_by_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_RESULTS", str(tmp_path))
    claims.save("02_agreement_matrix", "quick", [a07("quick")], {})
    assert claims.collect()["A07", "corrected"].outcome == "reproduced"


def test_the_largest_preset_that_decided_gives_the_verdict(tmp_path):
    store(tmp_path, a07("smoke"))
    assert claims.collect(tmp_path)["A07", "corrected"].outcome == "not attempted"
    store(tmp_path, a07("quick", held=True))
    assert claims.collect(tmp_path)["A07", "corrected"].outcome == "reproduced"
    store(tmp_path, a07("long", held=False))
    assert claims.collect(tmp_path)["A07", "corrected"].outcome == "not reproduced"
    store(tmp_path, a07("paper", n=2))
    collected = claims.collect(tmp_path)["A07", "corrected"]
    assert (collected.outcome, collected.preset) == ("not reproduced", "long")


def test_a_preset_that_decided_all_conditions_goes_before_a_larger_one_that_left_some_open(tmp_path):
    wide, narrow = [[0.1 * (seed % 5)] * 3 for seed in range(20)], [[0.01 * (seed % 5)] * 3 for seed in range(20)]
    scores = ("accuracy", "ARI", "silhouette")
    every = dict.fromkeys(scores, (narrow, wide))
    few = {score: (narrow[:6], wide[:6]) if score == "ARI" else (wide[:6], wide[:6]) for score in scores}
    for preset, evidence in (("quick", every), ("paper", few)):
        verdict = claims.judge("A06", evidence, preset=preset, control=[0.95])
        claims.save("02_agreement_matrix", preset, [verdict], {}, tmp_path)
    assert verdict.outcome == "partly"
    collected = claims.collect(tmp_path)["A06", "corrected"]
    assert (collected.outcome, collected.preset) == ("reproduced", "quick")


def test_undecided_claims_keep_the_note_of_the_largest_preset(tmp_path):
    store(tmp_path, a07("paper", n=1))
    store(tmp_path, a07("quick", n=2))
    assert claims.collect(tmp_path)["A07", "corrected"].note == "silhouette: n = 1, needs 3"


def test_arms_are_kept_side_by_side(tmp_path):
    store(tmp_path, a07("quick"), a07("quick", held=False, arm="as_published"))
    collected = claims.collect(tmp_path)
    assert collected["A07", "corrected"].outcome == "reproduced"
    assert collected["A07", "as_published"].outcome == "not reproduced"


def test_without_results_every_claim_is_not_attempted_and_says_why(tmp_path):
    collected = claims.collect(tmp_path / "absent")
    assert set(collected) == {(claim.id, claim.arm) for claim in claims.load().values()}
    assert {verdict.outcome for verdict in collected.values()} == {"not attempted"}
    assert all(verdict.note for verdict in collected.values())
    assert collected["F13", "corrected"].note == claims.load()["F13"].reason


def test_a_verdict_by_an_earlier_rule_does_not_count(tmp_path):
    store(tmp_path, replace(a07("paper"), digest="000000000000"))
    stale = claims.collect(tmp_path)["A07", "corrected"]
    assert (stale.outcome, stale.note) == (
        "not attempted",
        "judged by an earlier rule: run 02_agreement_matrix.paper again",
    )
    store(tmp_path, a07("quick"))
    assert claims.collect(tmp_path)["A07", "corrected"].outcome == "reproduced"


def test_a_verdict_below_the_preset_that_decides_does_not_count(tmp_path):
    low = replace(a07("quick"), preset="smoke")
    (tmp_path / "02_agreement_matrix.smoke.json").write_text(json.dumps({"verdicts": [asdict(low)]}))
    assert low.outcome == "reproduced"
    assert claims.collect(tmp_path)["A07", "corrected"].outcome == "not attempted"


def test_only_what_decides_a_claim_enters_its_digest():
    claim = claims.load()["F02"]
    assert replace(claim, statement="In other words.").digest == claim.digest
    assert replace(claim, reported={"before": 0.8, "after": 0.99}).digest != claim.digest


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"verdicts": [{}]}', '{"verdicts": [{"evidence": {}, "x": 1}]}'])
def test_a_broken_result_file_is_named(tmp_path, content):
    (tmp_path / "bad.quick.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad\.quick\.json is no result file"):
        claims.collect(tmp_path)


def test_a_result_on_a_claim_that_is_not_in_the_ledger_is_refused(tmp_path):
    path = store(tmp_path, a07("quick"))
    path.write_text(path.read_text().replace("A07", "A77"))
    with pytest.raises(ValueError, match=r"quick\.json is no result file.*no claim 'A77'"):
        claims.collect(tmp_path)


def test_saving_refuses_foreign_and_repeated_verdicts(tmp_path):
    with pytest.raises(ValueError, match="claim A07, corrected: judged twice"):
        store(tmp_path, a07("quick"), a07("quick", held=False))
    with pytest.raises(ValueError, match=r"claim A07, corrected: .*not by 04_flic at quick"):
        claims.save("04_flic", "quick", [a07("quick")], {}, tmp_path)
    with pytest.raises(ValueError, match=r"claim A07, corrected: .* at long"):
        claims.save("02_agreement_matrix", "long", [a07("quick")], {}, tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        claims.save("02_agreement_matrix", "quick", [a07("quick")], {"seconds": float("nan")}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_with_an_unknown_outcome_is_refused():
    with pytest.raises(ValueError, match="claim A07: outcome is 'maybe'"):
        claims.Verdict("A07", "maybe", "corrected", "quick")


def test_the_table_shows_reported_found_and_outcome():
    shown = claims.table([a07("quick"), claims.judge("A01", 7, preset="quick"), claims.judge("L02", preset="paper")])
    assert shown.index.tolist() == ["A07", "A01", "L02"]
    assert shown.outcome.tolist() == ["reproduced", "not reproduced", "not attempted"]
    assert shown.reported["A01"] == 1_663_370
    assert shown.found["A01"] == "parameters: fails, 7, n = 1 (expected 1.66337e+06 ± 0)"
    assert re.fullmatch(r"silhouette: holds, 0\.3933 \[0\.379, 0\.408\], n = 3", shown.found["A07"])


def test_the_table_in_a_notebook_cuts_nothing_off():
    verdict = claims.judge(
        "L13",
        {f"below {name}": ([0.1] * 3, [0.2, 0.21, 0.22]) for name in ("AVG", "1NN")},
        preset="long",
        control=[0.5],
    )
    both = [verdict, replace(verdict, arm="as_published")]
    page = claims.show(both, without=["arm", "preset"]).to_html()
    assert claims.load()["L13"].statement in page
    assert "below 1NN: holds" in page
    assert "..." not in page
    assert ">long<" not in page


def test_the_table_of_a_notebook_shows_numbers_by_name_and_nothing_where_the_paper_has_none():
    page = claims.show([claims.judge(claim, preset="quick") for claim in ("O02", "O16", "A01", "D13")]).to_html()
    assert "MNIST: 0.99;\nFMNIST: 0.94;\nCIFAR-10: 0.82" in page
    assert ">1663370<" in page
    assert ">None<" not in page
    assert "0.99" not in claims.show([claims.judge("O02", preset="quick")], without=["reported"]).to_html()
    assert "{" not in page.split("</style>")[1]


@pytest.mark.parametrize(
    ("finding", "against"),
    [
        (rules.judge_number([0.5, 0.52, 0.51], 0.9, 0.1), True),
        (rules.judge_number([0.5], 0.9, 0.1), False),
        (rules.judge_number([0.5, 1.4, 0.1], 0.9, 0.1), False),
        (rules.judge_number(7, 8, 0), True),
        (rules.judge_ordering([0.4, 0.5, 0.6], [0.5, 0.6, 0.7], "greater"), True),
        (rules.judge_ordering([0.5, 0.6, 0.8], [0.4, 0.5, 0.6], "greater"), False),
        (rules.judge_ordering([2, 3, 4], [2, 3, 4], "less"), True),
        (rules.judge_equality([0.9, 0.8, 0.85], [0.1, 0.0, 0.05], 0.1), True),
        (rules.judge_equality([0.3, 0.0, 0.1], [0.1, 0.2, 0.0], 0.05), False),
        (rules.judge_spread([*range(20)], [0.1 * x for x in range(20)], "less"), True),
        (rules.judge_spread([*range(20)], [*range(20)], "less"), False),
        (rules.judge_event([True, True, False]), True),
        (rules.judge_event([True, False, True, True], share=0.9), False),
        (rules.judge_ordering([0.5, 0.6], [0.4, 0.5], "greater"), None),
        (rules.judge_ordering([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], "greater"), None),
    ],
)
def test_a_finding_that_fails_says_whether_the_runs_speak_against_it(finding, against):
    assert finding.against is against


def test_a_claim_is_left_open_if_nothing_contradicts_it():
    wide, opposite = ([0.5, 0.6, 0.8], [0.4, 0.5, 0.6]), ([0.4, 0.5, 0.6], [0.5, 0.6, 0.7])
    vague, refuted = (claims.judge("A07", pair, preset="quick", control=[0.9]) for pair in (wide, opposite))
    assert (vague.outcome, vague.open) == ("not reproduced", True)
    assert (refuted.outcome, refuted.open) == ("not reproduced", False)
    assert claims.table([vague, refuted]).note.tolist() == [claims.OPEN, ""]
    assert not a07("quick").open
