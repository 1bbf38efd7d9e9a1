"""The real model, which the set-up installs: a test that wants it fails without it, for a skip would hide that."""

import os

import pytest

from contextinfinity.daemon.embedders import models
from tests.embedders.calls import ARCTIC


@pytest.fixture(scope="session")
def real_model() -> dict[str, str]:
    """The environment in which the model is found."""
    environ = dict(os.environ)
    if not models.installed(ARCTIC, environ):
        pytest.fail(f"{ARCTIC} is not in {models.folder(environ)}: run `make model`")
    return environ
