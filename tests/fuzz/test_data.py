"""A few hundred cases of each family; the files that are not mutated are read, so that the others mean something."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.data import FAMILIES, fuzz

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory and time as Linux does")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sound_file_is_read(name: str, tmp_path: Path) -> None:
    _, data = FAMILIES[name].write(tmp_path)
    FAMILIES[name].read(data)


@pytest.mark.parametrize("name", FAMILIES)
def test_only_errors_of_this_package_are_raised(name: str) -> None:
    counts = fuzz(name, 15)
    assert not counts.bad, f"{counts}: {counts.examples}"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_at_length(name: str) -> None:
    counts = fuzz(name, 400, seed=1)
    assert not counts.bad, f"{counts}: {counts.examples}"
