"""Scheduled Events for virtual machines."""

__version__ = "0.1.0"
