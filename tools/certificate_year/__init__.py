"""A simulated year of certificates in a fleet: ``python -m tools.certificate_year``."""
