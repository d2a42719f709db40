"""The subset of Parquet that Lithify reads and writes itself; all else is Arrow's."""
