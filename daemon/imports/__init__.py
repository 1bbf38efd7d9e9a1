"""Readers of the conversation histories people already have, one module a format, listed in `formats`.

They only ever read: nothing is written next to a source, and nothing is locked.
"""
