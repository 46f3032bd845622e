"""The operations of the network, fast: one module for each, its formula and plain reference first."""
