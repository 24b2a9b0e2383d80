"""generate, stream and abort over gRPC."""
