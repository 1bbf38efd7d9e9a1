"""The only place with SQL: synchronous transaction functions per aggregate, and `Storage`, their async face.

Nothing of SQLite leaks out: callers see methods named after what happens, protocol values, and faults.
"""
