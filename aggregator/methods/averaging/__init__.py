"""Methods that average into one common model: AFL, FedAtt, FedDA, FedGRU, NbAFL and UDP."""
