"""The monitor: a process of its own that reads a run's log and what the aggregator leaves beside it, and shows both over HTTP. It writes
nothing that the run depends on. docs/monitor.md is what it promises."""
