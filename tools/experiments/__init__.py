"""The papers' experiments on real data: loaders, a driver without a network, and judged claims."""
