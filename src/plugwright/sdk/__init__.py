"""Write a plugin: what an author subclasses, and everything that serves it.

`plugin` is what an author sees. `runtime` wires the rest together: `discovery` fills the `inventory`, `service`
answers the kubelet from it, `lifecycle` keeps it registered, `departures` forgets devices when that is safe.
"""
