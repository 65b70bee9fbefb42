"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def folders_of_the_module(tmp_path_factory):
    """Records and checkpoints of their own for a module whose tests share runs."""
    place = tmp_path_factory.mktemp("module")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLIB_RECORDS", str(place / "records"))
        patch.setenv("CFLIB_CHECKPOINTS", str(place / "checkpoints"))
        yield
