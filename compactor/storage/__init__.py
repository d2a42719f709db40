"""Objects and their keys: the location of a lake, the ObjectStore protocol, its implementations, every key."""
