"""The daemon in a VM: prepares for what is announced, approves, recovers."""
