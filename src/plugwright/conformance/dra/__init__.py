"""The rules for DRA drivers: sessions with an API server beside the emulated kubelet, and claims for their devices.

The API server comes from the caller, as a `session_api.SessionApi`: the rules know nothing of the one that serves it.
"""
