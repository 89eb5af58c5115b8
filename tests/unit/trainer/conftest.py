"""Property tests here assert no times: a busy machine must not fail them."""

from hypothesis import HealthCheck, settings

settings.register_profile("trainer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trainer")
