"""Real virtual machines on one machine: libvirt hosts in namespaces, guests, and a service that maintains them."""
