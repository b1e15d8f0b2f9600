"""Arithmetic against arithmetic in fractions."""
