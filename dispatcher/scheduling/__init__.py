"""Which session is next, and may it start: leases of streams, slots, budgets."""
