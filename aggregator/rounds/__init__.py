"""Rounds: the journalled state of a run, its tasks, its announcements and the publish queue."""
