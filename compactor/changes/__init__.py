"""Change feeds: files of mixed inserts, updates and deletes become upserts and deletes of a table's partitions.

`ops.py`, `debezium.py` and `binlog.py` read a feed's own form into `ChangeBatch`; `latest.py` leaves the last change of
each key; `appending.py` appends what is left, with one entry for each partition stream; `many_tables.py` divides a feed
of many tables.
"""
