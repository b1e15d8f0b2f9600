"""What any program needs of its operating system: files, folders, child processes. No torch, no network, nothing of a run's rules."""
