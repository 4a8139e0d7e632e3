"""The machine of an agent: addresses, ports, directories, NUMA nodes, and the secret file."""
