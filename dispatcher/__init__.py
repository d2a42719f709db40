"""Lithify's dispatcher: takes instructions from the queue, runs job runs, and the command line."""
