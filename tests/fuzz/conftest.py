"""A few examples of each test in the fast suite; `make fuzz` runs many, under the profile `fuzz`."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz",
    max_examples=4_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
