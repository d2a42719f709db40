"""Lithify on AWS: a CDK app with one construct per concern."""
