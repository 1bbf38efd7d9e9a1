"""Text to vectors: a model in this process, or a server that has one.

`base` is what the rest of the daemon knows of an embedder; `registry` makes one by its configuration.
"""
