"""The server's part in peer-to-peer methods: DFL-SGD and DFL-GT."""
