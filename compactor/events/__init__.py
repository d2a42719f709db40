"""Events: their types, their envelope, the relay from log to sink."""
