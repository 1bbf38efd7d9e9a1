"""The actor kit: mailboxes, typed asks, supervision, bounded broadcast, threads with a queue.

It knows nothing of conversations; `actors/` builds on it.
"""
