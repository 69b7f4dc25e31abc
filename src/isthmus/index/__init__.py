"""An index of memories, and attention that leaves out what provably does not matter."""
