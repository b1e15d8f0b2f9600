"""Audits at work: what peers hand out of their lots, lots computed again in a process beside the log, and what was found of them."""
