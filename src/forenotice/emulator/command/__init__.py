"""`forenotice emulate`: its command line, what it prints, and its life as a process."""
