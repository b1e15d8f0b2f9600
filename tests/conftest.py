"""Of all tests: how hypothesis looks for what breaks them."""

from hypothesis import HealthCheck, settings

# Nothing here compares times: on a busy machine an example, or drawing it, takes as long as it takes.
settings.register_profile("manta", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manta")
