"""CUDA C++ behind the operations: a driver and a source of the same name each."""
