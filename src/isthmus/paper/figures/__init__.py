"""Figures that only the report of the paper draws."""
