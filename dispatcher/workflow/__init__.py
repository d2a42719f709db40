"""Workflows: what the service in which they wait is asked for, and the dispatcher as a task of one."""
