"""mimonets: computation in superposition, several inputs in one pass through one network."""
