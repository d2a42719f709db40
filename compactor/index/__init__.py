"""The primary key index: its row layout and its files (contract 3; catalog/FORMAT.md, "Primary key index files")."""
