"""Judging somebody's handler: it lives through every scenario and every fault, and is watched."""
