"""Methods that keep one model for each client: PFL with credit attention."""
