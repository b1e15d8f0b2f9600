"""Audits at an operator: what peers bring of contributions that are drawn, and what waits for auditors."""
