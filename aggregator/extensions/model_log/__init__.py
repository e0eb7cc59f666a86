"""The log of each run's models, with a proof in every manifest, and the program of a witness, which cosigns it."""
