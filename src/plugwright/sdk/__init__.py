"""Write a plugin and serve it.

Authors subclass the class in `plugin`. For each resource, `daemon` connects the rest: `discovery` fills the
`inventory`, `service` answers the kubelet from it through `plugin_calls`, and `registration` keeps it registered. `run`
is the program around a daemon, `signals` stops it, `control` is its socket, `probes` its HTTP pages. Authors also use
`hotplug`, `sysfs` and `cdi`.
"""
