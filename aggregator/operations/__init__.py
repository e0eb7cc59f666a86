"""Operation of a fleet: enrolment, run set-up, reload, backup, status and alerts."""
