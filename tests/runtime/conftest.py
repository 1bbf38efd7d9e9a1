"""A stage for each test."""

import pytest

from tests.runtime.stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()
