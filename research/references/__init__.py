"""Reference tours made with classical solvers."""
