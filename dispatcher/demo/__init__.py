"""The parts of `lithify demo`."""
