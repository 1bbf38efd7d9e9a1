"""Thin shells around pure decisions: they receive, call `core`, and perform through storage, journal and providers."""
