from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import Bench, opened


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench
