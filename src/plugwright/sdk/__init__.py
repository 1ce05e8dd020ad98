"""Write a plugin and serve it.

`plugin` is what an author subclasses. `daemon` wires up the rest for each resource: `discovery` fills the `inventory`,
`service` answers the kubelet from it through `plugin_calls`, `registration` keeps it registered. `run` is the program
around a daemon, `signals` what ends it, `control` its socket, `probes` its HTTP pages. `hotplug`, `sysfs` and `cdi` are
for authors.
"""
