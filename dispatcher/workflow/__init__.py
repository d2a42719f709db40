"""Workflows: the service in which they wait, and the dispatcher as a task of one."""
