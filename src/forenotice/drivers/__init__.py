"""What really pauses, resets, moves or removes a VM."""
