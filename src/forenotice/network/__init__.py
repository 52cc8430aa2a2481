"""The network between VMs and the guests' endpoint: nftables rules by which an address is proof of a VM."""
