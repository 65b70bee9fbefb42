"""Tables that take training to make, kept like records, so that a notebook is executed again without it.

And how a table shows its spread, and what has not been run yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib.keys import key
from cflib.provenance import provenance
from cflib.records import Record, Store
from cflib.samples import confidence_interval


def with_spread(values: ArrayLike, *, digits: int = 2) -> str:
    """Write the mean, half of its 95 % interval, and the number of values; NaN is a value that is not there.

    >>> with_spread([0.9, 1.0, 1.0, np.nan]), with_spread([0.5], digits=3), with_spread([np.nan])
    ('0.97 ± 0.14 (3 of 4)', '0.500 (1)', '-')
    """
    every = np.asarray(values, dtype=np.float64)
    there = every[~np.isnan(every)]
    if there.size == 0:
        return "-"
    found = confidence_interval(there)
    count = f"({there.size})" if there.size == every.size else f"({there.size} of {every.size})"
    spread = "" if found.n == 1 else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f}{spread} {count}"


def over_seeds(runs: pd.DataFrame, by: Sequence[str], *, most: int = 3) -> pd.DataFrame:
    """Return a table with a row a run as it is, or, with more than ``most`` seeds, a row for each of ``by``.

    The other columns are then numbers, and written by ``with_spread``.

    >>> runs = pd.DataFrame({"case": "swap", "seed": range(4), "purity": [1.0, 1.0, 0.9, 1.0]})
    >>> over_seeds(runs[:3], ["case"]).shape, over_seeds(runs, ["case"]).to_dict()
    ((3, 3), {'purity': {'swap': '0.97 ± 0.08 (4)'}})
    """
    if runs.empty or runs["seed"].nunique() <= most:
        return runs.round(3)
    return runs.drop(columns="seed").groupby(list(by), sort=False).agg(with_spread)


def has_run(found: Sized, *parts: str) -> bool:
    """Tell whether there is anything to show; if not, print which parts of a study have not been run yet.

    >>> has_run([1], "IID"), has_run([], "label swap", "rotation")
    not run yet: parts label swap, rotation
    (True, False)
    """
    if not len(found):
        print(f"not run yet: {'part' if len(parts) == 1 else 'parts'} {', '.join(parts)}")
    return len(found) > 0


def kept_table(
    specification: Mapping[str, Any],
    make: Callable[[], pd.DataFrame],
    *,
    n_clients: int,
    store: Store | None = None,
    compute: bool = True,
) -> pd.DataFrame:
    """Return the table that a specification determines: read, or else made and kept; empty without ``compute``."""
    store, name = store or Store.of(), key(specification)
    record = store.read(name)
    if record is None and not compute:
        return pd.DataFrame()
    if record is None:
        began, table = time.monotonic(), make()
        record = Record(
            name,
            dict(specification),
            rounds=pd.DataFrame(),
            clients=table,
            clusters=pd.DataFrame(),
            labels=np.zeros((1, n_clients), dtype=np.int16),
            triangles=np.zeros((0, n_clients * (n_clients - 1) // 2), dtype=np.float32),
            kept=np.zeros(0, np.int32),
            provenance={**provenance(), "seconds": round(time.monotonic() - began, 1)},
        )
        store.write(record)
    return record.clients
