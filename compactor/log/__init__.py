"""The durable log and its checkpoints."""
