"""Job runs: their log, claims on them, the controller that runs their sessions, the publication of their events."""
