"""The catalog: what tables there are, and all that was ever written into them. FORMAT.md specifies its objects."""
