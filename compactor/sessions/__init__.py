"""The life of a session: attempts, rounds, commits, the session log."""
