"""Decoders as compiled loops on a CPU."""
