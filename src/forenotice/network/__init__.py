"""The network between VMs and the guests' endpoint: nftables rules that hold each VM to its own addresses."""
