"""Associative memories as layers of a network, and losses that learn them."""

from isthmus.nn.conversion import convert_state_dict
from isthmus.nn.hopfield import Hopfield
from isthmus.nn.pooling import HopfieldLayer, HopfieldPooling

__all__ = ["Hopfield", "HopfieldLayer", "HopfieldPooling", "convert_state_dict"]
