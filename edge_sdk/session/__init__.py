"""The device's side of the protocol: signed link, announcements, tasks and certificates."""
