"""Cities in, short tour out: options, stages, result."""
