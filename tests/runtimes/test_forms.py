"""Files of further forms give in other runtimes what they give in ONNX Runtime, wherever their originals run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtimes.forms import FORMS, LIMITS, Form
from tests.runtimes.tools import TOOLS, DoesNotRun, disagreements, outputs_in

BOUND = 1e-4


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Form]:
    """Return the files that were written already, by name."""
    return {}


def form_of(name: str, written: dict[str, Form], factory: pytest.TempPathFactory) -> Form:
    if name not in written:
        written[name] = FORMS[name](factory.mktemp("form"))
    return written[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (tool, name)
        for k, tool in enumerate(tool for tool in TOOLS if tool != "ONNX Runtime")
        for j, name in enumerate(FORMS)
        if (j - k) % 3 == 0 or (tool, name) in LIMITS
    ],
)
def test_runtimes_give_the_same(
    written: dict[str, Form], tmp_path_factory: pytest.TempPathFactory, tool: str, name: str
) -> None:
    if why := TOOLS[tool].missing():
        pytest.skip(why)
    form = form_of(name, written, tmp_path_factory)

    try:
        moved = difference(tool, form.original, form)
    except DoesNotRun:
        pytest.skip(f"{tool} refuses the original as well")
    if (tool, name) in LIMITS:
        with pytest.raises(DoesNotRun):
            difference(tool, form.written, form)
        return
    assert difference(tool, form.written, form) <= max(BOUND, 2 * moved)


def difference(tool: str, path: Path, form: Form) -> float:
    """Return how far an output of a file is from that in ONNX Runtime, relative to its size where that is over 1."""
    expected = outputs_in("ONNX Runtime", path, form.x)
    return disagreements(outputs_in(tool, path, form.x), expected)[0]
