"""The wire contract as pure values: what daemon and clients say to each other, and nothing of how either works.

Imports msgspec and the standard library only.
"""

PROTOCOL_VERSION = 1
