"""What a command line gives back to the test that ran it; the fixture `ctx` of `conftest` runs them."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Ctx = Callable[..., Result]
