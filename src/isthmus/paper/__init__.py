"""The paper that isthmus reproduces: its theory, its bounds and its experiments."""
