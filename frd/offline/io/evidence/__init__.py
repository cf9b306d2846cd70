"""What claims about files are made of: which files a hash means (`hashes`)."""
