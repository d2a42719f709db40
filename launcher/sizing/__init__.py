"""Chooses a session's cluster before anything is launched: instance types and prices, money, the choice. Pure,
except for reading a price file."""
