"""Split learning with a graph model on the server: PFGL and its relatives."""
