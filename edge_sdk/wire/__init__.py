"""The contract: what crosses between two ends, what it means and proves, what a method is."""
