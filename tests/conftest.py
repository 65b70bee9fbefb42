"""Fixtures that several test modules share."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)  # the same examples, however busy the machine
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def folders_of_the_module(tmp_path_factory):
    """Records and checkpoints of their own for a module whose tests share runs."""
    place = tmp_path_factory.mktemp("module")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLIB_RECORDS", str(place / "records"))
        patch.setenv("CFLIB_CHECKPOINTS", str(place / "checkpoints"))
        yield
