"""Tables that take training to make, kept like records, so that a notebook is executed again without it.

And how a cell of a table shows its spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib.keys import key
from cflib.provenance import provenance
from cflib.records import Record, Store
from cflib.samples import confidence_interval


def with_spread(values: ArrayLike) -> str:
    """Write the mean, half of its 95 % interval, and the number of values; NaN is a value that is not there.

    >>> with_spread([0.9, 1.0, 1.0, np.nan]), with_spread([0.5]), with_spread([np.nan])
    ('0.97 ± 0.14 (3 of 4)', '0.50 (1)', '-')
    """
    every = np.asarray(values, dtype=np.float64)
    there = every[~np.isnan(every)]
    if there.size == 0:
        return "-"
    found = confidence_interval(there)
    count = f"({there.size})" if there.size == every.size else f"({there.size} of {every.size})"
    return f"{found.mean:.2f} {count}" if found.n == 1 else f"{found.mean:.2f} ± {found.high - found.mean:.2f} {count}"


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
