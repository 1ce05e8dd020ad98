"""NVIDIA GPUs: discovery, health, sharing, allocation, and the preferred choice by their links.

The modules are the interface; `family` is where the operator's configuration becomes plugins.
"""
