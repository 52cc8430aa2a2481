"""Measurements of the service beside its yardsticks, in one run on one machine."""
