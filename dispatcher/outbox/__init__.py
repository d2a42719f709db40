"""What leaves the dispatcher: events, answers to workflows, publications of tables."""
