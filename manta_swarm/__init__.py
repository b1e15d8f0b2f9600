"""Volunteers' computers train one once-for-all supernet together; every peer ends a round with the same bits.

The packages stand at the top of the repository, and are imported by this one name: here are links to them. Importing it loads nothing.
"""
