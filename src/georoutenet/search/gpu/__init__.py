"""Local search on a GPU: many instances at a time."""
