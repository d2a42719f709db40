"""Reads a table: scan, merge on read, lookup by key."""
