"""The command line: names to functions, no logic of its own."""
