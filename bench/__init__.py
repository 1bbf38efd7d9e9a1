"""Measures the daemon against bare baselines of the same run; `python -m bench` and `python -m bench.recall`."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the daemon sets it, and before anything loads numpy
