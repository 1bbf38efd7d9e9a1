"""Compression is used by many threads at once."""

import threading

from contextinfinity.daemon.storage import blobs


def test_threads_do_not_share_codecs() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in range(300):
            data = bytes([seed, i % 256]) * (2000 + 37 * i)
            if blobs.expand(blobs.compress(data)) != data:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
