"""Programs of administrators', run as child processes."""
