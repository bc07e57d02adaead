"""What requests and responses look like, here and in the OpenAPI document, by resource."""
