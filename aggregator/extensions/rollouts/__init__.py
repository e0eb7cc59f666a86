"""Decide the stages of a rollout from the daily results that devices report."""
