"""Lithify's launcher: sizes a session, and runs it on a cluster of its own."""
