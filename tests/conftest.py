"""Hypothesis on machines of any speed: an example that takes long is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "any machine",
    parent=settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")
