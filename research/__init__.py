"""What the project needs and the package does not: report pages, reference tours, packaging of weights."""
