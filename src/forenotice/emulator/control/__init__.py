"""Driving the emulator over HTTP. Only `listening` is light; the rest is loaded when somebody asks."""
