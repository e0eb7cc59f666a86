"""Watch over the validity of the files of the TLS link."""
