"""The daemon in a VM: one loop, its journal, its handlers."""
