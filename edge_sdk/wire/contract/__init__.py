"""What both ends agree on: method contracts, parameter layout, manifest and archive."""
