"""Tables, their partition streams, and the log of every delta and round. FORMAT.md specifies the objects."""
