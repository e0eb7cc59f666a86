"""The store on PostgreSQL, with a lease for a standby."""
