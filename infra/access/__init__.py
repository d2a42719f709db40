"""The permissions of each part, as values: one role for each part, with no more than the part needs."""
