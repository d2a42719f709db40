"""`lithify ingest`: files that announce themselves on a queue become deltas of the tables that they land for."""
