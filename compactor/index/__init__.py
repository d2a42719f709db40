"""The primary key index: its row layout and its files (FORMAT.md, "Primary key index files")."""
