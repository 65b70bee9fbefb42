"""Speeds as ratios against a named peer, measured in one run on one machine: ``make bench``."""
