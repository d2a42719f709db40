"""From a message on the queue to an accepted or a rejected job run."""
