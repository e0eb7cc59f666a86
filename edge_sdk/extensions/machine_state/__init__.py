"""Defer training and sending while the machine is busy or on battery, and outside the upload windows."""
