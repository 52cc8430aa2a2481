"""Scenarios: what is announced when, written in TOML, checked before it is played."""
