"""Arithmetic that gives the same bits on every machine: how contributions are coded and how their mean is taken. NumPy only."""
