"""All that only works on POSIX systems; everything else of the agent does without."""
