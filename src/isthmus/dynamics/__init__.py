"""Ways to move on any energy: retrieval, completion and sampling."""
