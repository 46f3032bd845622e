"""Compiled loops behind dense scores on a CPU."""
