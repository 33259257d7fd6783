"""What the workflow asks before the first job: the command line, machines, environments."""
