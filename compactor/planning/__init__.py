"""Decides what a session and a round do: reads logs and footers, writes nothing, knows no Spark."""
