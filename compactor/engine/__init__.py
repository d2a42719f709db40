"""Runs the steps of a round, on Spark or in this process. Only this room and the job's entry points import pyspark."""
