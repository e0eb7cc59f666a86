"""Direct simulation: device and server halves in one process, without broker, signatures and disk."""
