"""Tables that take training to make, kept like records, so that a notebook is executed again without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from cflib.keys import key
from cflib.provenance import provenance
from cflib.records import Record, Store


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
        record = Record(
            name,
            dict(specification),
            rounds=pd.DataFrame(),
            clients=make(),
            clusters=pd.DataFrame(),
            labels=np.zeros((1, n_clients), dtype=np.int16),
            triangles=np.zeros((0, n_clients * (n_clients - 1) // 2), dtype=np.float32),
            kept=np.zeros(0, np.int32),
            provenance=provenance(),
        )
        store.write(record)
    return record.clients
