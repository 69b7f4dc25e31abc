"""The report on the paper."""
