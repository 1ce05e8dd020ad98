"""NVIDIA GPUs: discovery, health, sharing, allocation, and the preferred choice by links.

Import its modules directly; `family` makes plugins from the operator's configuration.
"""
