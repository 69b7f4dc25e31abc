"""Draw rows that resemble those of a table, and measure how well they do."""

from isthmus.synthesis.draws import Draws, draw_rows

__all__ = ["Draws", "draw_rows"]
