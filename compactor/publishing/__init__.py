"""Publishes the compacted rows of tables in open table formats, by reference to the same files: no row is copied."""
