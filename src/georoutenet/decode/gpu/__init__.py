"""Decoders as Triton kernels on a GPU."""
