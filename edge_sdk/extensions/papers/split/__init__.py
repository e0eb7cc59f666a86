"""Device half of split learning: rounds whose steps exchange activations and gradients."""
