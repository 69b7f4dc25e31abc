"""Files: atomic writes, reading what may be damaged or hostile, and the archives of models."""
