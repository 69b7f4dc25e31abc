"""The clustering study."""
