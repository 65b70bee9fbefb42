"""The papers' claims, the rules that decide them, and the verdicts that runs have earned.

The ledger ``data/reference/claims.yml`` fixes the conditions of each claim and how each is tested; a notebook only
brings evidence, by seed, as a pair where a rule compares (``A against B`` is ``(A, B)``)::

    verdicts = [claims.judge("A07", (agreement, standard), preset=preset, control=fedavg), ...]
    claims.save("02_agreement_matrix", preset, verdicts, provenance())
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from cflib.files import write_atomically
from cflib.places import folder as place
from cflib.rules import TESTS, Finding, check_runs, combine, final, sign_of

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

__all__ = ["Claim", "Verdict", "collect", "combine", "final", "judge", "load", "save", "show", "table"]

PRESETS = ("smoke", "quick", "long", "paper")
ARMS = ("corrected", "as_published")
OUTCOMES = ("reproduced", "partly", "not reproduced", "not attempted")
INKS = dict(zip(OUTCOMES, ("#0b61a4", "#a86f00", "#b3361b", "#777777"), strict=True))
OPEN = "left open: not contradicted either"
KINDS = ("number", "ordering", "equality", "spread", "trend", "setup")
PAPERS = ("000", "001", "002", "003", "004")
NOTEBOOKS = ("01_louvain_cfl", "02_agreement_matrix", "03_dbscan_hierarchy", "04_flic", "05_ocfl")
FOUND = (
    "Found: of a number its mean over runs, of one quantity against another the mean difference (first minus second), "
    "of a trend Spearman's correlation, of an event the share of runs, of a spread the difference of mean deviations; "
    "in brackets the 95 % interval, n the number of runs or seeds. Where a condition names a bound, the value itself."
)
"""What the numbers in a table of verdicts are."""
INPUTS = ("values", "first", "second", "series", "happened")


@dataclass(frozen=True)
class Claim:
    """One claim of a paper; ``conditions`` maps each of its parts to one of ``TESTS`` and the test's settings."""

    id: str
    paper: str
    place: str
    statement: str
    kind: str
    reported: Any
    notebook: str
    preset: str
    rule: str = ""
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    control: Mapping[str, Any] | None = None
    arm: str = "corrected"
    reason: str = ""

    def __post_init__(self) -> None:
        _check_choices(self, paper=PAPERS, kind=KINDS, notebook=NOTEBOOKS, preset=PRESETS[1:], arm=ARMS)
        if not self.statement or bool(self.rule and self.conditions) == bool(self.reason):
            raise ValueError(f"claim {self.id}: needs a statement, and a rule with conditions or else a reason")
        if self.control is not None and set(self.control) != {"setting", "accuracy"}:
            raise ValueError(f"claim {self.id}: control has {sorted(self.control)}, expected accuracy and setting")
        for label in self.conditions:
            test, settings = self._test(label)
            parameters = inspect.signature(test)
            try:
                parameters.bind(**{name: None for name in parameters.parameters if name in INPUTS} | settings)
                sign_of(settings.pop("direction", "less"))
                sum(settings.values())  # every other setting is a number
            except (TypeError, ValueError) as error:
                raise ValueError(f"claim {self.id}, {label}: {error}") from error

    @property
    def digest(self) -> str:
        """A short hash of what decides the claim: a verdict by an earlier rule does not count."""
        decides = json.dumps([self.reported, self.conditions, self.control], sort_keys=True)
        return hashlib.sha256(decides.encode()).hexdigest()[:12]

    def examine(self, label: str, evidence: Any) -> Finding:
        """Apply the test of one condition to its evidence: one array, or a tuple of two where the rule compares."""
        test, settings = self._test(label)
        try:
            return test(*(evidence if isinstance(evidence, tuple) else [evidence]), **settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"claim {self.id}, {label}: {error}") from error

    def _test(self, label: str) -> tuple[Callable[..., Finding], dict[str, Any]]:
        settings = dict(self.conditions[label])
        if (name := settings.pop("test", None)) not in TESTS:
            raise ValueError(f"claim {self.id}, {label}: test is {name!r}, expected one of {tuple(TESTS)}")
        if name == "number":
            settings["reported"] = self.reported.get(label) if isinstance(self.reported, Mapping) else self.reported
        return TESTS[name], settings


@dataclass(frozen=True)
class Verdict:
    """What was decided on a claim in one arm, at which preset, and what the test of each condition found."""

    claim: str
    outcome: str
    arm: str
    preset: str
    evidence: Mapping[str, Finding] = field(default_factory=dict)
    note: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        _check_choices(self, outcome=OUTCOMES, arm=ARMS, preset=PRESETS)

    @property
    def conditions(self) -> dict[str, bool | None]:
        """Which conditions held, which did not, which are undecided (None)."""
        return {label: finding.held for label, finding in self.evidence.items()}

    @property
    def open(self) -> bool:
        """Whether a claim that is not reproduced is not contradicted either: more seeds might tell."""
        failed = [finding.against for finding in self.evidence.values() if finding.held is False]
        return self.outcome == OUTCOMES[2] and all(against is False for against in failed)


@cache
def load(path: Path | None = None) -> Mapping[str, Claim]:
    """Return the ledger by claim id; raise ``ValueError`` naming the claim that is not in order."""
    import yaml

    claims = {}
    ledger = path or place("reference", "CFLIB_REFERENCE") / "claims.yml"
    if not ledger.is_file():
        raise ValueError(f"there is no ledger {ledger}: let CFLIB_REFERENCE name the folder that holds it")
    text = ledger.read_text(encoding="utf-8")
    for name, entry in yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)).items():
        try:
            claims[name] = Claim(name, **entry)
        except TypeError as error:
            raise ValueError(f"claim {name}: {error}") from error
    return MappingProxyType(claims)


def judge(
    claim: str, evidence: Any = None, *, preset: str, arm: str = "", control: ArrayLike | None = None, note: str = ""
) -> Verdict:
    """Decide a claim by the ledger's rule from the evidence of its conditions (by label, or bare if there is one).

    Conditions without evidence stay undecided. At the smoke preset, below the claim's own, or if the ``control`` (final
    accuracies of the setting the ledger names) has not learned, nothing is decided, but the findings are kept.
    """
    entry = _find(claim)
    if not isinstance(evidence, Mapping):
        labels = entry.conditions if len(entry.conditions) == 1 else ["(bare)"]
        evidence = {} if evidence is None else dict.fromkeys(labels, evidence)
    if unknown := sorted(set(evidence) - set(entry.conditions)):
        raise ValueError(f"claim {claim} has no condition {unknown}: pass evidence by {list(entry.conditions)}")
    found = {label: entry.examine(label, values) for label, values in evidence.items()}
    verdict = Verdict(claim, OUTCOMES[3], arm or entry.arm, preset, found, digest=entry.digest)
    outcome = combine({label: verdict.conditions.get(label) for label in entry.conditions})
    notes = [note, *(f"{label}: {finding.note}" for label, finding in found.items() if finding.held is None)]
    if missing := [label for label in entry.conditions if label not in found]:
        notes.append(f"without evidence: {', '.join(missing)}")
    if found and entry.control:
        if control is None:
            raise ValueError(f"claim {claim}: pass control, the final accuracies of {entry.control['setting']}")
        if (reached := float(check_runs(control).mean())) < entry.control["accuracy"]:
            outcome = OUTCOMES[3]
            notes = [
                f"not learned: {entry.control['setting']} has {reached:.3f}, needs {entry.control['accuracy']}",
                note,
            ]
    if entry.reason or PRESETS.index(preset) < PRESETS.index(entry.preset):
        outcome = OUTCOMES[3]
        notes = [entry.reason or f"{preset}: the smallest preset that decides is {entry.preset}", note]
    return replace(verdict, outcome=outcome, note="; ".join(filter(None, notes)))


def save(
    slug: str, preset: str, verdicts: Iterable[Verdict], provenance: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Write the verdicts of one notebook at one preset to ``<slug>.<preset>.json``, whole or not at all."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for verdict in verdicts:
        if (verdict.claim, verdict.arm) in rows or (_find(verdict.claim).notebook, verdict.preset) != (slug, preset):
            raise ValueError(f"claim {verdict.claim}, {verdict.arm}: judged twice, or not by {slug} at {preset}")
        rows[verdict.claim, verdict.arm] = asdict(verdict)
    content = {"slug": slug, "preset": preset, "verdicts": list(rows.values()), "provenance": provenance}
    path = (folder or place("results", "CFLIB_RESULTS")) / f"{slug}.{preset}.json"
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def collect(folder: Path | None = None) -> dict[tuple[str, str], Verdict]:
    """Return by claim and arm the verdict of the largest preset that decided it; no claim is left out.

    One that decided every condition of the claim goes before a larger one that left some of them open.
    """
    best: dict[tuple[str, str], Verdict] = {}
    for path in sorted((folder or place("results", "CFLIB_RESULTS")).glob("*.json")):
        try:
            verdicts = [_read(row) for row in json.loads(path.read_text(encoding="utf-8"))["verdicts"]]
            claimed = [_find(verdict.claim) for verdict in verdicts]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no result file: {error!r}: remove it, or run its notebook again") from error
        for new, claim in zip(verdicts, claimed, strict=True):
            too_small = new.outcome != OUTCOMES[3] and PRESETS.index(new.preset) < PRESETS.index(claim.preset)
            if new.digest != claim.digest or too_small:
                new = replace(new, outcome=OUTCOMES[3], note=f"judged by an earlier rule: run {path.stem} again")
            best[new.claim, new.arm] = max(best.get((new.claim, new.arm), new), new, key=_weight)
    for claim in load().values():
        note = claim.reason or f"no run has been judged yet; the smallest preset that decides is {claim.preset}"
        best.setdefault((claim.id, claim.arm), Verdict(claim.id, OUTCOMES[3], claim.arm, claim.preset, note=note))
    return best


def table(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return one row a verdict, for display: what the paper reports, what was found, what is decided."""
    import pandas as pd

    rows = []
    for verdict in verdicts:
        claim, found = _find(verdict.claim), "; ".join(f"{k}: {_show(f)}" for k, f in verdict.evidence.items())
        rows.append({"claim": claim.id, "statement": claim.statement, "reported": claim.reported, "found": found})
        rows[-1] |= {name: getattr(verdict, name) for name in ("outcome", "arm", "preset", "note")}
        rows[-1]["note"] = "; ".join(filter(None, [OPEN if verdict.open else "", verdict.note]))
    return pd.DataFrame(rows).set_index("claim")


def show(verdicts: Iterable[Verdict], *, without: Sequence[str] = ("preset",)) -> Styler:
    """Return the table as a notebook should show it: nothing cut off, outcomes in colour, a legend for *found*."""
    whole = table(verdicts)
    whole = whole.assign(found=whole["found"].str.replace("; ", ";\n"), reported=whole["reported"].map(_told))
    lines = whole.drop(columns=list(without)).reset_index()  # a claim has a row for each arm
    look = lines.style.set_properties(
        None, **{"text-align": "left", "vertical-align": "top", "white-space": "pre-line"}
    )
    look.set_caption(FOUND).set_table_styles([{"selector": "caption", "props": "text-align: left; max-width: 60em"}])
    return look.hide(axis="index").map(lambda outcome: f"color: {INKS[outcome]}; font-weight: bold", subset=["outcome"])


def _told(reported: Any) -> str:
    if isinstance(reported, Mapping):
        return ";\n".join(f"{label}: {_told(value)}" for label, value in reported.items())
    if isinstance(reported, float):
        return "" if np.isnan(reported) else f"{reported:g}"  # pandas turns None into NaN among numbers
    return "" if reported is None else str(reported)


def _show(finding: Finding) -> str:
    ends = " [{:.3g}, {:.3g}]".format(*finding.interval) if finding.interval else ""
    word = {True: "holds", False: "fails", None: "undecided"}[finding.held]
    return f"{word}, {finding.value:.4g}{ends}, n = {finding.n}" + (f" ({finding.note})" if finding.note else "")


def _read(row: dict[str, Any]) -> Verdict:
    evidence = {}
    for label, finding in row["evidence"].items():
        evidence[label] = Finding(**finding | {"interval": finding["interval"] and tuple(finding["interval"])})
    return Verdict(**row | {"evidence": evidence})


def _weight(verdict: Verdict) -> tuple[bool, bool, int]:
    whole = all(verdict.conditions.get(label) is not None for label in _find(verdict.claim).conditions)
    decided = verdict.outcome != OUTCOMES[3]
    return decided, decided and whole, PRESETS.index(verdict.preset)


def _find(claim: str) -> Claim:
    if claim not in load():
        raise ValueError(f"there is no claim {claim!r} in the ledger")
    return load()[claim]


def _check_choices(entry: Claim | Verdict, **allowed: tuple[str, ...]) -> None:
    for name, values in allowed.items():
        if getattr(entry, name) not in values:
            which = entry.id if isinstance(entry, Claim) else entry.claim
            raise ValueError(f"claim {which}: {name} is {getattr(entry, name)!r}, expected one of {values}")
