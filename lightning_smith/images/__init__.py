"""Docker images: pull, the agent layer, proof, manifests, push, removal."""
