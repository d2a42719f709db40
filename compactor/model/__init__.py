"""Values that everybody shares, with no behaviour beyond their own checks: ids, error kinds, time, documents."""
