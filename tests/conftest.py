"""Of all tests: how hypothesis looks for what breaks them, and that Ctrl-C can be pressed."""

import signal

from hypothesis import HealthCheck, settings

# Nothing here compares times: on a busy machine an example, or drawing it, takes as long as it takes.
settings.register_profile("manta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manta")

# A shell has what it starts in the background ignore SIGINT, and so would each program that a test starts and presses Ctrl-C in.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
