"""What outlives the service on disk: findings, journal, dump folders; a module per format."""
