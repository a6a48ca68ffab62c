"""The single-input networks and DataMUX: what the paper compares with."""
