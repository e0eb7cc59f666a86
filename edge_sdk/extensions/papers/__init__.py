"""Device halves of the methods of BAFDP, BiG-FL, FeSEM and FedDA."""
