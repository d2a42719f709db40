"""Who has which work: open job runs, claimed job runs, and the controller that advances them."""
