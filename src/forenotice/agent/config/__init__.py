"""agent.toml: what it may say, read and checked."""
