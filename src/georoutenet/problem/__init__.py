"""The problem: instances, tours, random instances."""
