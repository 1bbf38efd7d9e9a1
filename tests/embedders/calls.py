"""What the tests of embedders have in common."""

import numpy as np

from contextinfinity.daemon.embedders.base import Vectors

ARCTIC = "snowflake-arctic-embed-s"
ARCTIC_DIM = 384


def lengths(rows: Vectors) -> Vectors:
    return np.asarray(np.linalg.norm(rows, axis=-1), dtype=np.float32)
