"""Data sheet of a run: the fields that devices send, and their protection."""
