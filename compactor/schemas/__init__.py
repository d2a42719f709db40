"""How schemas grow: unify, cast, render."""
