"""The system on several hosts: network namespaces of this machine, with links to be cut."""
