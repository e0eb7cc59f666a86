"""Messages, their encoding and signatures, transfers and the outbox."""
