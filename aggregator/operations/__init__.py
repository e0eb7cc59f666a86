"""What operators need: enrolment, run set-up, reload, backup, metrics, status and alerts."""
