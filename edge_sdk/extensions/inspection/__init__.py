"""Show the state of a device, its privacy budget and its resource limits; count its releases twice."""
