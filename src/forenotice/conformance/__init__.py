"""Judges of others: of endpoints, and of clients."""
