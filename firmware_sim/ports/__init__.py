"""The bytes that real devices speak. Nothing here is shared with what reads them in the SDK."""
