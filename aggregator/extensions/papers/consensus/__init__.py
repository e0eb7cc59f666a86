"""Consensus methods: RSA, DP-RSA, BAFDP, BSFDP and ASPIRE-EASE."""
