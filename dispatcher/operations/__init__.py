"""For operators: status, health, metrics."""
