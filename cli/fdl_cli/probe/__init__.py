"""``fdl probe``: what the nodes of a cluster, or this machine, can run, and what is wrong with them."""
