"""Tour -> better tour, and first tours without a network."""
