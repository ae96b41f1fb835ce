"""A few cases of each family; the files that are not mutated are read, so that the others mean something."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import reader
from tests.fuzz.children import OUTCOMES, campaign
from tests.fuzz.data import FAMILIES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory and time as Linux does")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sound_file_is_read(name: str, tmp_path: Path) -> None:
    _, data = FAMILIES[name].write(tmp_path)
    FAMILIES[name].read(data)


@pytest.mark.parametrize("name", FAMILIES)
def test_only_errors_of_this_package_are_raised(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    counts = campaign(name, reader(name, FAMILIES[name]), seed=1, cases=15)
    assert not any(counts[bad] for bad in OUTCOMES[2:]), capfd.readouterr().err
