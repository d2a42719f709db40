"""Garbage collection and the audit of index against files."""
