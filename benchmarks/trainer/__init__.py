"""What training costs: an update beside plain torch, and a gang of several hosts."""
