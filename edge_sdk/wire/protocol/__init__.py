"""The protocol itself: messages, their bytes and signatures, transfers and the outbox."""
