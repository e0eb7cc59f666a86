"""The papers' experiments on real data: loaders, a driver without a wire, judged claims."""
