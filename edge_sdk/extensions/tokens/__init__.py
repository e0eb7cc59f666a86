"""Identity keys in PKCS #11 tokens."""
