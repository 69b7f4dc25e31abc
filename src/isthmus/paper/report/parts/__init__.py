"""The parts of the report: each function computes one section.

A part takes a seed and whether to use the paper's own sizes, and returns a
:class:`isthmus.report.Section`. :mod:`isthmus.paper.report.registry` lists them.
"""
