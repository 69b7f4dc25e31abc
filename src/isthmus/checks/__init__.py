"""Public batteries that an energy, ours or yours, can be run through."""

from isthmus.checks.energy_checks import CheckReport, check_energy

__all__ = ["CheckReport", "check_energy"]
