"""The parts of `isthmus reproduce`: each takes a seed and returns a section of the report."""
