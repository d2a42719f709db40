"""The facts of job runs: logs with their folds, stores, claims, history, what waits; it decides nothing."""
