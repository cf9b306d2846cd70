"""Cluster on NATS JetStream: the only package that imports the NATS library."""
