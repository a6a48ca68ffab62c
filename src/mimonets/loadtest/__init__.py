"""Measure or simulate a server: arrivals, load, rules to compare with, isolation of tenants."""
