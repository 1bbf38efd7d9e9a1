"""The `ctx` command: each module here is one command or a few close ones, loaded when it is called.

`main` is the entry, `base` what every command shares, `connection` the way to the daemon.
"""
