"""The numbers here are those that users get."""

from collections.abc import Iterator

import pytest

from tests.conftest import draw_as_users


@pytest.fixture(scope="module", autouse=True)
def _as_users() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        draw_as_users(patch)
        yield
