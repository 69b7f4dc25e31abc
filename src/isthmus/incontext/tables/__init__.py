"""In-context densities of small tables: a transformer writes a Student mixture."""
